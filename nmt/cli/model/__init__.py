"""Commands on trained runs: averages, exports, imports, shortlists and calibration."""

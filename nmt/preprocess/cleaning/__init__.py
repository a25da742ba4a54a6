"""Cleaning of a corpus: the pipeline, its steps, and duplicates."""

"""Parallel text to a dataset: cleaning, subwords and encoding."""

"""Faster inference: prepared modules, int8, shortlists and worker processes."""

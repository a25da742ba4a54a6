"""Faster inference: prepared modules, shortlists and worker processes."""

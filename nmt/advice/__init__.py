"""Advice for a corpus and a machine: a recipe with a reason for each value."""

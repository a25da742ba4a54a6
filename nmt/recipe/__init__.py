"""Recipes: registered names, and plain values to frozen dataclasses."""

"""Subwords: text to token ids and back."""

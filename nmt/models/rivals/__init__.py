"""The systems that the Transformer was compared with, and their layers."""

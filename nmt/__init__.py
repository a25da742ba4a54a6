"""Neural machine translation: *Attention Is All You Need*, its rivals, and later fixes."""

__version__ = "0.1.0"

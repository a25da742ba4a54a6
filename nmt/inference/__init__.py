"""Inference: text in, text out, with a trained model."""

from nmt.inference.translator import SearchConfig, Translation, Translator

__all__ = ["SearchConfig", "Translation", "Translator"]

"""Inference: text in, text out, with a trained model."""

from nmt.inference.translator import SearchConfig, Translator

__all__ = ["SearchConfig", "Translator"]

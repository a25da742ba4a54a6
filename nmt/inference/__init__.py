"""Inference: text in, text out, with a trained model."""

from nmt.inference.translation import Request, Translation
from nmt.inference.translator import SearchConfig, Translator

__all__ = ["Request", "SearchConfig", "Translation", "Translator"]

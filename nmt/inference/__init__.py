"""Inference: text in, text out, with a trained model."""

from nmt.inference.translation import Request, Translation
from nmt.inference.translator import LineTranslator, SearchConfig, Translator

__all__ = ["LineTranslator", "Request", "SearchConfig", "Translation", "Translator"]

"""Inference: text in, text out, with a trained model."""

from nmt.inference.config import SearchConfig
from nmt.inference.execution import Execution
from nmt.inference.line_translator import LineTranslator
from nmt.inference.request import Request
from nmt.inference.translation import Translation
from nmt.inference.translator import Translator

__all__ = [
    "Execution",
    "LineTranslator",
    "Request",
    "SearchConfig",
    "Translation",
    "Translator",
]

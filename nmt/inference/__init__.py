"""Inference: text in, text out, with a trained model."""

from nmt.inference.execution import Execution
from nmt.inference.lines import LineTranslator
from nmt.inference.request import Request, Translation
from nmt.inference.translator import Translator
from nmt.search.config import SearchConfig

__all__ = [
    "Execution",
    "LineTranslator",
    "Request",
    "SearchConfig",
    "Translation",
    "Translator",
]

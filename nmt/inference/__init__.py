"""Inference: text in, text out, with a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nmt.inference.execution import Execution
from nmt.inference.lines import LineTranslator
from nmt.inference.request import Request, Translation
from nmt.search.config import SearchConfig

if TYPE_CHECKING:
    from nmt.inference.translator import Translator as Translator

__all__ = [
    "Execution",
    "LineTranslator",
    "Request",
    "SearchConfig",
    "Translation",
    "Translator",
]


def __getattr__(name: str) -> Any:
    """`Translator`, which brings torch with it, only where it is asked for."""
    if name == "Translator":
        from nmt.inference.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Neural machine translation: *Attention Is All You Need*, its rivals, and later fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.inference.pretrained import Translator as Translator

__all__ = ["Translator", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Translator`, which brings torch with it, only where it is asked for."""
    if name == "Translator":
        from nmt.inference.pretrained import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

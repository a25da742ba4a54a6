"""Words of a text as the model reads it.

Characters that SentencePiece's default rule turns into spaces divide words. Python takes other
characters for white space, for instance U+0085, but not U+200B.
"""

from __future__ import annotations

import re
import unicodedata

SPACES = (
    "\t\n\f\r \u00a0\u061c\u1680\u2000-\u200c\u200e\u200f\u2028\u2029\u202f\u205f\u2581\u3000"
    "\ufeff\ufffd"
)
"""Ranges, for the brackets of a pattern, of the characters that the model reads as a space."""

DROPPED = "\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f"
"""Ranges of the characters that the model does not read at all."""

WORD = re.compile(f"[^{SPACES}{DROPPED}][^{SPACES}]*")
"""A word, from the first character that the model reads."""

_DROPPED = re.compile(f"[{DROPPED}]")


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return WORD.findall(text)


def word_starts(text: str) -> list[int]:
    """Return the offsets at which the words of a text begin."""
    return [word.start() for word in WORD.finditer(text)]


def as_read(text: str) -> str:
    """Return the text as the model reads it: in form NFKC, with one space between two words."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()  # most terms and lines
    return " ".join(words(unicodedata.normalize("NFKC", _DROPPED.sub("", text))))

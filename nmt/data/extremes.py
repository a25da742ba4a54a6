"""The extremes of the source sentences that a model was trained on.

A model rarely translates a line well that is much longer, or holds more sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nmt.io.documents import DocumentFormat

EXTREMES_FILE = "extremes.json"
"""Name of the file in a run or an export. Imported models and models of documents have no such
file."""

MUCH_LONGER = 1.5
"""Length of a line, relative to the longest training sentence, that is too long."""


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """Content of ``extremes.json``."""

    max_tokens: int
    """Tokens of the longest source sentence, EOS included."""
    max_sentence_ends: int
    """Largest number of tokens in a source sentence that may end a sentence, as full stops do."""

    def are_exceeded(self, tokens: Sequence[int], sentence_ends: Collection[int]) -> bool:
        """Return whether a line is much longer than in training, or holds more ends of sentences.

        Args:
            tokens: source tokens of the line, EOS included.
            sentence_ends: ids of the tokens that may end a sentence.
        """
        return (
            len(tokens) > MUCH_LONGER * self.max_tokens
            or sum(map(sentence_ends.__contains__, tokens)) > self.max_sentence_ends
        )


EXTREMES = DocumentFormat(
    kind=Extremes,
    name="nmt-extremes",
    version=1,
    remedy="copy the directory again from where it came from, or make it again",
)

"""The extremes of the sentences that a model was trained on.

A model rarely translates a line well that is much longer, or holds more sentences. A translation
whose length differs more from the length of its source is rarely whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nmt.io.documents import DocumentFormat
from nmt.lazy import np

if TYPE_CHECKING:
    from nmt.data.dataset import Split

EXTREMES_FILE = "extremes.json"
"""Name of the file in a run or an export. Imported models and models of documents have no such
file."""

MUCH_LONGER = 1.5
"""Length of a line, relative to the longest training sentence, that is too long."""

TAIL = 0.005
"""Share of the training pairs below the smallest usual length ratio, and above the greatest."""

PAIRS = 100_000
"""Training pairs, spread over the dataset, of which the length ratios are taken."""


def length_ratio(source: Any, target: Any) -> Any:
    """Return the ratio of the tokens of a target and its source, numbers or arrays.

    A few tokens more on both sides make the ratios of short and long sentences vary alike.
    """
    return (target + 4) / (source + 4)


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """Content of ``extremes.json``."""

    max_tokens: int
    """Tokens of the longest source sentence, EOS included."""
    max_sentence_ends: int
    """Largest number of tokens in a source sentence that may end a sentence, as full stops do."""
    min_length_ratio: float | None = None
    """Smallest usual :func:`length_ratio` of a pair; None in runs of earlier versions."""
    max_length_ratio: float | None = None
    """Greatest usual :func:`length_ratio` of a pair."""

    @classmethod
    def of_training(cls, split: Split, sentence_ends: Sequence[int]) -> Extremes:
        """Return the extremes of a training set; `sentence_ends` as in :meth:`are_exceeded`."""
        lengths = (split.sampled_lengths(side, PAIRS) for side in ("source", "target"))
        least, most = np.quantile(length_ratio(*lengths), [TAIL, 1 - TAIL])
        return cls(
            max_tokens=int(split.source_lengths.max()),
            max_sentence_ends=split.most_of("source", sentence_ends),
            min_length_ratio=float(least),
            max_length_ratio=float(most),
        )

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

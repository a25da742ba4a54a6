"""Error rates of grapheme-to-phoneme conversion: a line is a word, its tokens are phones.

As in SIGMORPHON's shared tasks (Gorman et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.evaluation.metrics import Counts, Metric, metrics


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Metric):
    """Errors per hundred, of tokens that white space separates."""

    higher_is_better: ClassVar[bool] = False

    def compute(self, counts: Counts) -> tuple[float, str]:
        """Return the errors in per cent, and their number."""
        errors, total = (sum(column) for column in zip(*counts, strict=True))
        return 100 * errors / total if total else 0.0, f"({errors:.0f}/{total:.0f})"

    def signature(self) -> str:
        """Return how tokens are told apart."""
        return "nrefs:1|tok:none"


@metrics.register("wer")
@dataclass(frozen=True, kw_only=True)
class WordErrorRate(ErrorRate):
    """Word error rate: the share of lines with any wrong phone, each line being one word."""

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[Any], sources: Sequence[str]
    ) -> Counts:
        """Return whether a line is wrong, and 1 for the line."""
        pairs = zip(hypotheses, references, strict=True)
        return [[float(one.split() != other.split()), 1.0] for one, other in pairs]


@metrics.register("per")
@dataclass(frozen=True, kw_only=True)
class PhoneErrorRate(ErrorRate):
    """Phone error rate: the edit distance over the length of the references."""

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[Any], sources: Sequence[str]
    ) -> Counts:
        """Return the edit distance and the length of each reference."""
        pairs = [
            (one.split(), two.split()) for one, two in zip(hypotheses, references, strict=True)
        ]
        return [[float(edit_distance(one, two)), float(len(two))] for one, two in pairs]


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the least number of insertions, deletions and substitutions (Levenshtein 1966)."""
    above: list[int] = [*range(len(second) + 1)]
    for row, token in enumerate(first, 1):
        last = [row]
        for column, other in enumerate(second, 1):
            kept = above[column - 1] + (token != other)
            last.append(min(kept, above[column] + 1, last[-1] + 1))
        above = last
    return above[-1]

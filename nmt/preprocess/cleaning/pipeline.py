"""Cleaning of the training pairs: named steps on the text, then limits in tokens.

A step either *rewrites* text or *filters* pairs. A pair leaves the training split for one reason,
the first of: a filtering step of ``preprocess.clean``, in the recipe's order; a limit in subword
tokens (:func:`judge`); ``duplicates``; ``not_sampled`` (:mod:`nmt.preprocess.selection`). The
held-out splits are never cleaned, except by `detokenize`. ``nmt preprocess`` and ``nmt inspect``
print how many pairs each reason dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations, compress, islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from nmt.data.manifest import Lengths, reasons
from nmt.errors import NmtError
from nmt.preprocess.cleaning.steps import (
    CleaningStep,
    Detokenize,
    Duplicates,
    Filtering,
    HeldOut,
    Rewriting,
    Side,
)

MAX_EXAMPLES = 10

MAX_EXAMPLE_LENGTH = 200
"""Characters of a line that are shown."""


@dataclass
class CleaningStats:
    """Counts and first examples of what cleaning did; see the dataset's ``SplitCounts``."""

    dropped: dict[str, int] = field(default_factory=dict)
    rewritten: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[list[str]]] = field(default_factory=dict)

    def drop(self, reason: str, pairs: int, examples: Iterable[Sequence[str]] = ()) -> None:
        """Count pairs that are left out for a reason, and keep the first examples."""
        self.dropped[reason] = self.dropped.get(reason, 0) + pairs
        self._show(reason, examples)

    def rewrite(self, step: str, lines: int, examples: Iterable[Sequence[str]] = ()) -> None:
        """Count lines that a step changed; an example is the line before and after."""
        self.rewritten[step] = self.rewritten.get(step, 0) + lines
        self._show(step, examples)

    def add(self, other: CleaningStats) -> None:
        """Add the counts and examples of other stats."""
        for reason, pairs in other.dropped.items():
            self.drop(reason, pairs, other.examples.get(reason, ()))
        for step, lines in other.rewritten.items():
            self.rewrite(step, lines, other.examples.get(step, ()))

    def _show(self, name: str, examples: Iterable[Sequence[str]]) -> None:
        kept = self.examples.get(name, [])
        for example in islice(examples, MAX_EXAMPLES - len(kept)):
            kept.append([line[:MAX_EXAMPLE_LENGTH] for line in example])
            self.examples[name] = kept


class CleaningResult(IntEnum):
    """Outcome of the limits in tokens for a training pair."""

    KEPT = 0
    EMPTY = 1
    TOO_SHORT = 2
    TOO_LONG = 3
    UNEQUAL = 4


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Settings of cleaning. Held-out pairs are never left out or shortened.

    Lengths are in subword tokens, EOS included.
    """

    clean: tuple[CleaningStep, ...] = ()
    """Steps that rewrite the training text or drop pairs, in this order, before it is cut into
    subwords. Only ``duplicates`` always runs last, after the limits in tokens. No steps by default:
    only pairs that training cannot use are dropped."""

    on_empty: Literal["drop", "error"] = "drop"
    """Whether a training pair with an empty side (no tokens) is dropped, or is an error."""

    on_invalid_utf8: Literal["error", "replace"] = "error"
    """Whether bytes that are not UTF-8 are an error, or are replaced by U+FFFD."""

    min_tokens_per_sentence: int = 1
    """Training pairs with a shorter side are dropped; 1 drops none."""

    max_tokens_per_sentence: int = 256
    """Training pairs with a longer side are dropped; 256 as in the paper's own training."""

    max_length_ratio: float | None = None
    """Training pairs whose longer side is more than this many times the shorter side are dropped.
    1.5 is common for well-aligned languages of similar morphology; 9 drops only pairs that are
    certainly not translations."""

    def __post_init__(self) -> None:
        for step, later in combinations(self.clean, 2):
            if isinstance(step, HeldOut) and isinstance(later, Rewriting):
                raise ValueError(
                    f"clean has {later.name} after {step.name}, but {step.name} compares the "
                    f"lines after the last rewriting step; put {step.name} after {later.name}"
                )
        if self.min_tokens_per_sentence < 1:
            raise ValueError(
                f"min_tokens_per_sentence must be at least 1, not {self.min_tokens_per_sentence}"
            )
        if self.max_tokens_per_sentence < max(2, self.min_tokens_per_sentence):
            raise ValueError(
                "max_tokens_per_sentence must be at least 2 and min_tokens_per_sentence, "
                f"not {self.max_tokens_per_sentence}"
            )
        if self.max_length_ratio is not None and self.max_length_ratio < 1:
            raise ValueError(f"max_length_ratio must be at least 1, not {self.max_length_ratio}")

    @property
    def drops_duplicates(self) -> bool:
        """Whether only the first of equal pairs is kept."""
        return any(isinstance(step, Duplicates) for step in self.clean)

    def rewritten(self, lines: list[str], side: Side) -> list[str]:
        """Return the lines of a side after all rewriting steps, each at its old index."""
        for step in self.clean:
            if isinstance(step, Rewriting):
                lines = step.lines(lines, side)
        return lines

    def detokenized(self, lines: list[str], side: Side) -> list[str]:
        """Return the held-out lines of a side, as plain text if a step makes the text so."""
        for step in self.clean:
            if isinstance(step, Detokenize):
                lines = step.lines(lines, side)
        return lines

    def cleaned(
        self, source: list[str], target: list[str], held_out: frozenset[str], stats: CleaningStats
    ) -> tuple[npt.NDArray[np.intp], list[str], list[str]]:
        """Apply the steps, except ``duplicates``, to training pairs.

        Args:
            source: lines of text.
            target: the line that belongs to each line of the source.
            held_out: every line of the held-out splits, rewritten like the training text.
            stats: counts the pairs dropped and the lines rewritten.

        Returns:
            The indices [kept] in `source` of the pairs that are kept, and both sides of these
            pairs, rewritten.
        """
        indices = np.arange(len(source))
        for step in self.clean:
            if isinstance(step, Rewriting):
                sides = [
                    (source, step.lines(source, "source")),
                    (target, step.lines(target, "target")),
                ]
                pairs = [
                    pair
                    for before, after in sides
                    # `lines` returns the same list where nothing changed, which saves comparing the
                    # lines.
                    if before is not after
                    for pair in zip(before, after, strict=True)
                    if pair[0] != pair[1]
                ]
                # Counted and shown: cleaning that nobody sees cannot be trusted.
                stats.rewrite(step.name, len(pairs), pairs)
                source, target = sides[0][1], sides[1][1]
            elif isinstance(step, Filtering):
                kept = step.keep(source, target, held_out)
                dropped = [not is_kept for is_kept in kept]
                examples = zip(compress(source, dropped), compress(target, dropped), strict=True)
                stats.drop(step.name, sum(dropped), examples)
                if any(dropped):
                    indices = indices[kept]
                    source, target = list(compress(source, kept)), list(compress(target, kept))
        return indices, source, target


def judge(source: Lengths, target: Lengths, cleaning: Cleaning) -> npt.NDArray[np.intp]:
    """Return the :class:`CleaningResult` [n] of pairs of these lengths [n], EOS included.

    Where several limits apply to a pair, the first of the enumeration is the result.
    """
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    ratio = np.inf if cleaning.max_length_ratio is None else cleaning.max_length_ratio
    applies = {
        # EOS alone.
        CleaningResult.EMPTY: shorter == 1,
        CleaningResult.TOO_SHORT: shorter < cleaning.min_tokens_per_sentence,
        CleaningResult.TOO_LONG: longer > cleaning.max_tokens_per_sentence,
        CleaningResult.UNEQUAL: longer > ratio * shorter,
    }
    # The first reason counts, so that the numbers of all reasons add up.
    return np.select(list(applies.values()), list(applies), default=CleaningResult.KEPT)


_REMEDIES = {
    "empty": "their lines are blank on one side or both; check the files of --train",
    "too_short": "lower preprocess.min_tokens_per_sentence",
    "too_long": "raise preprocess.max_tokens_per_sentence",
    "unequal": "raise preprocess.max_length_ratio, or check that line n of both files is one pair",
    "held_out": "the validation or test set holds training text; give other sets (--valid, --test)",
}
"""Remedies for reasons other than the steps of `preprocess.clean`."""


def nothing_left(dropped: dict[str, int], shard: str | None = None) -> NmtError:
    """Return the error for a dataset without pairs.

    Args:
        dropped: pairs that cleaning dropped, by reason.
        shard: part of the text that the dataset holds; None for all of it.
    """
    total = sum(dropped.values())
    if shard and not total:
        return NmtError(
            f"preprocess: no training pair belongs to part {shard}; divide so little text into "
            "fewer parts"
        )
    # The commonest reason is the likeliest mistake.
    commonest = max(dropped, key=lambda reason: dropped[reason], default="")
    step = "leave out that step of preprocess.clean, or set its limits wider"
    remedy = _REMEDIES.get(commonest, step)
    return NmtError(
        f"preprocess: cleaning dropped {total:,} of {total:,} training pairs: {reasons(dropped)}; "
        f"{remedy}"
    )

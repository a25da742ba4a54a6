"""Which training pairs are kept, and what is mended in them: named steps, then limits in tokens.

A step either *rewrites* text, many lines at once, or *filters* pairs. What each did is counted,
with examples, so that nobody has to guess what became of a corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations, compress, islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from nmt.data.manifest import Lengths
from nmt.preprocess.cleaning_steps import Duplicates, Filtering, HeldOut, Rewriting, Step

MAX_EXAMPLES = 3

MAX_EXAMPLE_LENGTH = 200
"""Characters of a line that are shown."""


@dataclass
class CleaningStats:
    """What cleaning did: how often, and the first examples; see the dataset's ``SplitCounts``."""

    dropped: dict[str, int] = field(default_factory=dict)
    rewritten: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[list[str]]] = field(default_factory=dict)

    def drop(self, reason: str, pairs: int, examples: Iterable[Sequence[str]] = ()) -> None:
        """Counts pairs that are left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + pairs
        self._show(reason, examples)

    def rewrite(self, step: str, lines: int, examples: Iterable[Sequence[str]] = ()) -> None:
        """Counts lines that were changed; examples are of before and after."""
        self.rewritten[step] = self.rewritten.get(step, 0) + lines
        self._show(step, examples)

    def add(self, other: CleaningStats) -> None:
        """Adds what another has counted."""
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
    """What becomes of a training pair when its tokens are counted."""

    KEPT = 0
    EMPTY = 1
    TOO_SHORT = 2
    TOO_LONG = 3
    UNEQUAL = 4


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which training pairs are left out. Held-out pairs are never left out or shortened.

    Lengths are in subword tokens, EOS included.
    """

    clean: tuple[Step, ...] = ()
    """Steps that mend the training text or leave pairs out before subwords, in this order; none
    by default, for only what training cannot use is dropped unasked."""

    on_empty: Literal["drop", "error"] = "drop"
    """What to do with a training pair of which a side has no tokens."""

    on_invalid_utf8: Literal["error", "replace"] = "error"
    """What to do with bytes that are not UTF-8; "replace" puts U+FFFD in their place."""

    min_tokens_per_sentence: int = 1
    """Training pairs with a shorter side are dropped; 1 drops none."""

    max_tokens_per_sentence: int = 256
    """Training pairs with a longer side are dropped; 256 as in the paper's own training."""

    max_length_ratio: float | None = None
    """Training pairs whose longer side is more than this many times the shorter one are dropped.
    1.5 is common for well-aligned languages of alike morphology, 9 removes only what is certainly
    no translation."""

    def __post_init__(self) -> None:
        for step, later in combinations(self.clean, 2):
            if isinstance(step, HeldOut) and isinstance(later, Rewriting):
                raise ValueError(
                    f"clean has {later.name} behind {step.name}, which looks for lines as the last "
                    f"rewriting leaves them; put {step.name} behind {later.name}"
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
        """Whether of equal pairs only the first is kept."""
        return any(isinstance(step, Duplicates) for step in self.clean)

    def rewritten(self, lines: list[str]) -> list[str]:
        """The lines after the steps that rewrite, one line for each."""
        for step in self.clean:
            if isinstance(step, Rewriting):
                lines = step.lines(lines)
        return lines

    def cleaned(
        self, source: list[str], target: list[str], held_out: frozenset[str], tally: CleaningStats
    ) -> tuple[npt.NDArray[np.intp], list[str], list[str]]:
        """The pairs that the steps leave, mended, and where in `source` each of them was."""
        places = np.arange(len(source))
        for step in self.clean:
            if isinstance(step, Rewriting):
                sides = [(side, step.lines(side)) for side in (source, target)]
                pairs = [
                    pair
                    for before, after in sides
                    if before is not after
                    for pair in zip(before, after, strict=True)
                    if pair[0] != pair[1]
                ]
                tally.rewrite(step.name, len(pairs), pairs)
                source, target = sides[0][1], sides[1][1]
            elif isinstance(step, Filtering):
                kept = step.keep(source, target, held_out)
                dropped = [not it for it in kept]
                examples = zip(compress(source, dropped), compress(target, dropped), strict=True)
                tally.drop(step.name, sum(dropped), examples)
                if any(dropped):
                    places = places[kept]
                    source, target = list(compress(source, kept)), list(compress(target, kept))
        return places, source, target


def judge(source: Lengths, target: Lengths, cleaning: Cleaning) -> npt.NDArray[np.intp]:
    """Return the :class:`CleaningResult` of pairs of these lengths [n], EOS included."""
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    ratio = np.inf if cleaning.max_length_ratio is None else cleaning.max_length_ratio
    applies = {
        CleaningResult.EMPTY: shorter == 1,
        CleaningResult.TOO_SHORT: shorter < cleaning.min_tokens_per_sentence,
        CleaningResult.TOO_LONG: longer > cleaning.max_tokens_per_sentence,
        CleaningResult.UNEQUAL: longer > ratio * shorter,
    }
    return np.select(list(applies.values()), list(applies), default=CleaningResult.KEPT)

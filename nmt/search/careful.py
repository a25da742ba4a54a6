"""The search for a line that went wrong: no repeated n-grams, and coverage of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nmt.search.base import Strategy
from nmt.search.constraints import Constraint, NoRepeatNgram
from nmt.search.lexical import LexicalBeam

NGRAM = 3
"""Tokens of a run that may not appear twice."""


@dataclass(frozen=True, kw_only=True)
class CarefulBeam(LexicalBeam):
    """Beam search for a second attempt, also with required phrases."""

    constraints: ClassVar[tuple[Constraint, ...]] = (NoRepeatNgram(size=NGRAM),)
    coverage_penalty: ClassVar[float] = 0.2  # Wu et al. 2016

    @classmethod
    def like(cls, strategy: Strategy) -> CarefulBeam:
        """Return the search with the beam and the length penalty of a strategy, if it has them."""
        names = [key for key in ("beam", "length_penalty") if hasattr(strategy, key)]
        values = {key: getattr(strategy, key) for key in names}
        # The stop that leaves the coverage penalty the most hypotheses to choose from.
        return cls(name="careful_beam", stop="all_finished", **values)

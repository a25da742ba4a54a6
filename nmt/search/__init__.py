"""Search: from a model's next-token logits to whole hypotheses, best first.

A strategy sees a model only through ``start``, ``step`` and ``select`` of
:mod:`nmt.models.base`. Importing this package registers every strategy and length penalty.
"""

from nmt.search.base import Hypothesis, Strategy, strategies
from nmt.search.beam import Beam
from nmt.search.greedy import Greedy
from nmt.search.ranking import LengthPenalty, length_penalties

__all__ = [
    "Beam",
    "Greedy",
    "Hypothesis",
    "LengthPenalty",
    "Strategy",
    "length_penalties",
    "strategies",
]

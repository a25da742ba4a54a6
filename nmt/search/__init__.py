"""Search: from a model's next-token logits to whole hypotheses, best first.

A strategy calls only ``start``, ``step`` and ``select`` of a model; see
:mod:`nmt.models.base`. Importing this package registers every strategy, length penalty
and constraint.
"""

from nmt.search.base import Strategy, strategies
from nmt.search.beam import Beam
from nmt.search.constraints import Avoided, Constraint, Prefixes, constraints
from nmt.search.diverse import DiverseBeam
from nmt.search.greedy import Greedy
from nmt.search.hypotheses import Hypothesis
from nmt.search.lexical import LexicalBeam
from nmt.search.ranking import LengthPenalty, length_penalties
from nmt.search.sample import Sample

__all__ = [
    "Avoided",
    "Beam",
    "Constraint",
    "DiverseBeam",
    "Greedy",
    "Hypothesis",
    "LengthPenalty",
    "LexicalBeam",
    "Prefixes",
    "Sample",
    "Strategy",
    "constraints",
    "length_penalties",
    "strategies",
]

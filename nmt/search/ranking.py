"""Length penalties and GNMT's coverage penalty, for ranking hypotheses.

A sum of log-probabilities falls with length, so search without a penalty prefers short outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from nmt.data.padding import as_rows, target_input
from nmt.data.vocabulary import EOS, PAD
from nmt.recipe.registry import Registry
from nmt.search.hypotheses import Hypothesis, best_first

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.models.base import Model


@dataclass(frozen=True, kw_only=True)
class LengthPenalty(ABC):
    """A divisor of log-probabilities.

    The divisor never decreases with length: the stop criterion of the beam search relies on this.
    """

    registry: ClassVar[Registry[LengthPenalty]]

    name: str = ""
    """Name of the length penalty whose values the other keys override."""

    @abstractmethod
    def divisor(self, lengths: Any) -> Any:
        """Return the divisor of a length, a number or a float32 tensor of numbers.

        Lengths include the EOS, so they begin at 1.
        """

    @property
    def nearest_power(self) -> float:
        """Alpha of the power penalty that ranks outputs of 20 and of 30 tokens as this one does."""
        # Other engines know length ^ alpha alone; usual lengths decide which alpha ranks alike.
        return round(math.log(self.divisor(30.0) / self.divisor(20.0)) / math.log(1.5), 4)


length_penalties: Registry[LengthPenalty] = Registry("length penalty", flag="--length-penalty")

LengthPenalty.registry = length_penalties


@length_penalties.register("none")
@dataclass(frozen=True, kw_only=True)
class NoPenalty(LengthPenalty):
    """Ranks by log-probability alone."""

    def divisor(self, lengths: Any) -> Any:
        """Return 1 for every length."""
        # A power, so that a tensor of lengths gives a tensor of ones.
        return lengths**0.0


@dataclass(frozen=True, kw_only=True)
class PenaltyWithAlpha(LengthPenalty):
    """A length penalty with an exponent."""

    alpha: float
    """Exponent of the length penalty; 0 ranks by log-probability alone, more prefers longer
    outputs."""

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ValueError(f"alpha must be at least 0, not {self.alpha:g}")


@length_penalties.register("gnmt")
@dataclass(frozen=True, kw_only=True)
class GnmtPenalty(PenaltyWithAlpha):
    """((5 + length) / 6) ^ alpha (Wu et al. 2016, equation 14).

    The Transformer paper takes alpha 0.6 (section 6.1).
    """

    alpha: float = 0.6

    def divisor(self, lengths: Any) -> Any:
        """Return the divisors: 1 for a lone EOS, 1.73 for 10 tokens with alpha 0.6."""
        # EOS counts. The formula in the docstring of tensor2tensor's beam search differs from its
        # code; this is the code.
        return ((5.0 + lengths) / 6.0) ** self.alpha


@length_penalties.register("power")
@dataclass(frozen=True, kw_only=True)
class PowerPenalty(PenaltyWithAlpha):
    """length ^ alpha, as in fairseq, Marian and Sockeye; differs from GNMT's at the same alpha.

    Alpha 1 ranks by the mean log-probability of a token.
    """

    alpha: float = 1.0

    def divisor(self, lengths: Any) -> Any:
        """Return the divisors: the length itself with alpha 1."""
        return (1.0 * lengths) ** self.alpha


MIN_ATTENTION = 1e-9
"""Lower bound on the attention of a source token: log(0) would exclude the output."""


def with_coverage(
    lists: Sequence[Sequence[Hypothesis]], model: Model, source: Tensor, beta: float
) -> list[list[Hypothesis]]:
    """Add the coverage penalty to the scores of hypotheses, and sort them again.

    The penalty is beta * sum over source tokens of log min(attention summed over steps, 1). EOS
    does not need to be covered.

    Args:
        lists: the hypotheses of each sentence.
        model: with attention; used in its current mode, under the caller's contexts.
        source: [B, S] int64, the source of the search.
        beta: weight of the penalty, from 0.

    Returns:
        The same hypotheses with their new scores, best first.

    Raises:
        NmtError: the model has no attention.
    """
    sentences = [at for at, hypotheses in enumerate(lists) for _ in hypotheses]
    outputs = [hypothesis.output for hypotheses in lists for hypothesis in hypotheses]
    target = as_rows(outputs).to(source.device)
    source = source[sentences]  # [N, S]
    weights = model.source_attention(source, target_input(target)).float()  # [N, T, S]
    # Padding of shorter outputs attends to the source, too.
    covered = (weights * (target != PAD)[..., None]).sum(1)
    # Wu et al. 2016, equation 14: attention above 1 earns nothing.
    logarithms = covered.clamp(MIN_ATTENTION, 1.0).log()
    # The end of the source has nothing to be translated.
    is_token = (source != PAD) & (source != EOS)
    penalties = iter((beta * (logarithms * is_token).sum(1)).tolist())
    penalised = [
        [replace(hypothesis, score=hypothesis.score + next(penalties)) for hypothesis in hypotheses]
        for hypotheses in lists
    ]
    # With this count no cut hypothesis is dropped.
    return [best_first(hypotheses, len(hypotheses)) for hypotheses in penalised]

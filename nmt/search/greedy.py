"""Greedy search: the likeliest token at every step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nmt.data.vocabulary import EOS
from nmt.search.base import Continuations, Hypotheses, Hypothesis, SearchState, Strategy, strategies


@strategies.register("greedy")
@dataclass(frozen=True, kw_only=True)
class Greedy(Strategy):
    """One hypothesis per sentence; its score is its log-probability."""

    @property
    def rows(self) -> int:
        """One."""
        return 1

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> GreedyState:
        """One empty sequence per sentence."""
        return GreedyState(Hypotheses.open(source))


@dataclass
class GreedyState(SearchState):
    """The one sequence of each sentence."""

    alive: Hypotheses

    def advance(self, continuations: Continuations) -> None:
        """Adds the likeliest token; of equals, the one with the lowest id."""
        values, tokens = continuations.likeliest(1)
        log_probs, best = values.max(-1, keepdim=True)  # [B, 1, 1]
        log_probabilities = self.alive.log_probabilities + log_probs[..., 0]
        self.alive = self.alive.extend(
            tokens.gather(-1, best)[..., 0], log_probabilities, scores=log_probabilities
        )

    def is_done(self) -> Tensor:
        """Those whose sequence ends with EOS."""
        return self.alive.tokens[:, 0, -1] == EOS

    def select_sentences(self, sentences: Tensor) -> GreedyState:
        """Their sequences."""
        return GreedyState(self.alive.select_sentences(sentences))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """One each."""
        return self.alive.hypotheses()

"""Greedy search: takes the likeliest token at every step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nmt.data.vocabulary import EOS
from nmt.search.base import SearchState, Strategy, strategies
from nmt.search.continuations import Continuations
from nmt.search.hypotheses import Hypotheses, Hypothesis


@strategies.register("greedy")
@dataclass(frozen=True, kw_only=True)
class Greedy(Strategy):
    """One hypothesis per sentence; the score is the log-probability."""

    @property
    def rows_per_sentence(self) -> int:
        """One row per sentence."""
        return 1

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> GreedyState:
        """Return one empty sequence per sentence."""
        return GreedyState(Hypotheses.open(source))


@dataclass
class GreedyState(SearchState):
    """The one sequence of each sentence."""

    alive: Hypotheses

    def advance(self, continuations: Continuations) -> None:
        """Append the likeliest token; of equals, the one with the lowest id."""
        values, tokens = continuations.likeliest(1)
        log_probs, best = values.max(-1, keepdim=True)  # [B, 1, 1]
        log_probabilities = self.alive.log_probabilities + log_probs[..., 0]
        self.alive = self.alive.extend(
            tokens.gather(-1, best)[..., 0], log_probabilities, scores=log_probabilities
        )

    def is_done(self) -> Tensor:
        """Return the sentences whose sequence ends with EOS: [B] bool."""
        return self.alive.tokens[:, 0, -1] == EOS

    def select_sentences(self, sentences: Tensor) -> GreedyState:
        """Return the state of the given sentences."""
        return GreedyState(self.alive.select_sentences(sentences))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return one hypothesis per sentence."""
        return self.alive.hypotheses()

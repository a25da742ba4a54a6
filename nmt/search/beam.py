"""Beam search, by default as the Transformer paper's code does it (Tensor2Tensor).

Of the continuations of a sentence's alive rows, the best twice as many as the beam are candidates,
so that at least a beam of them does not end. Those become the alive rows; the candidates that end
compete with what has ended before for the places of the finished set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.format import EOS, PAD
from nmt.search.base import Continuations, Frontier, Hypothesis, Rows, Strategy, strategies
from nmt.search.ranking import LengthPenalty, length_penalties


@strategies.register("beam")
@dataclass(frozen=True, kw_only=True)
class Beam(Strategy):
    """Keeps several sequences per sentence. Of equals, the one found first is the better."""

    beam: int = 4
    """Alive sequences per sentence, and the most hypotheses returned; 4 is the paper's."""

    length_penalty: LengthPenalty = length_penalties["gnmt"]
    """What the log-probability is divided by; the paper's is gnmt with alpha 0.6."""

    stop: Literal["optimistic", "all_finished", "first_beam"] = "optimistic"
    """When a sentence is done. `optimistic` (the paper's): the best finished hypothesis scores at
    least what the best alive one would if it came to the greatest length at no cost.
    `all_finished`: so does every one of a full beam of finished ones; the same winner, better
    runners-up. `first_beam` (fairseq's): a beam of hypotheses is finished; a hypothesis may end
    only among the best beam of candidates."""

    pruning: float | None = None
    """Alive sequences whose log-probability is more than this below the best alive one of their
    sentence are given up (Wu et al. 2016 have 3)."""

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be at least 1, not {self.beam}")
        if self.pruning is not None and not self.pruning >= 0:
            raise ValueError(f"pruning must be at least 0, not {self.pruning:g}")

    @property
    def rows(self) -> int:
        """The beam."""
        return self.beam

    def open(self, source: Tensor, max_lengths: Tensor) -> BeamFrontier:
        """One empty sequence per sentence, and nothing finished."""
        nothing = torch.full((len(source), self.beam), float("-inf"), device=source.device)
        return BeamFrontier(
            strategy=self,
            alive=Rows.open(source),
            finished=Rows(source.new_full((len(source), self.beam, 1), PAD), nothing, nothing),
            final_divisors=self.length_penalty.divisor(max_lengths),
        )


@dataclass
class BeamFrontier(Frontier):
    """The alive and the finished sequences of each sentence, both best first."""

    strategy: Beam
    alive: Rows  # [B, K]; K is the beam, or all there are where that is fewer
    finished: Rows  # [B, beam]
    final_divisors: Tensor  # [B], the length penalty at the greatest length

    def advance(self, continuations: Continuations) -> Tensor:
        """Candidates become alive or finished; gives the rows that the alive ones continue."""
        beam, (sentences, rows, _) = self.strategy.beam, continuations.logits.shape
        candidates, parents = self._candidates(continuations)  # [B, at most 2 beam]
        is_eos = candidates.tokens[:, :, -1] == EOS
        num_alive = min(beam, parents.size(1) - rows)  # at most one candidate per row ends
        alive = is_eos.int().argsort(dim=1, stable=True)[:, :num_alive]
        self.alive = self._prune(candidates.take(alive))
        if self.strategy.stop == "first_beam":
            is_eos[:, beam:] = False
        self._finish(candidates, is_eos)
        first_rows = torch.arange(0, sentences * rows, rows, device=parents.device)
        return first_rows[:, None] + parents.gather(1, alive)

    def _candidates(self, continuations: Continuations) -> tuple[Rows, Tensor]:
        """The best continuations, best first, and the rows [B, n] that they continue."""
        _, rows, vocabulary = continuations.logits.shape
        wanted = 2 * self.strategy.beam
        values, tokens = continuations.likeliest(wanted)  # [B, K, C]
        values = self.alive.log_probabilities[..., None] + values
        order = values.flatten(1).argsort(dim=1, descending=True, stable=True)
        best = order[:, : min(wanted, rows * (vocabulary - 2))]  # PAD and BOS never
        parents = best // values.size(-1)
        log_probabilities = values.flatten(1).gather(1, best)
        candidates = self.alive.take(parents).extend(
            tokens.flatten(1).gather(1, best),
            log_probabilities,
            scores=log_probabilities / self._divisor(self.alive.tokens.size(-1)),
        )
        return candidates, parents

    def _prune(self, alive: Rows) -> Rows:
        if self.strategy.pruning is None:
            return alive
        log_probabilities = alive.log_probabilities
        hopeless = log_probabilities < log_probabilities[:, :1] - self.strategy.pruning
        return Rows(
            alive.tokens,
            log_probabilities.masked_fill(hopeless, float("-inf")),
            alive.scores.masked_fill(hopeless, float("-inf")),
        )

    def _divisor(self, length: int) -> float:
        return float(self.strategy.length_penalty.divisor(torch.tensor(length)))

    def _finish(self, candidates: Rows, is_eos: Tensor) -> None:
        """Lets the candidates that end compete for the places of the finished set."""
        scores = candidates.scores.masked_fill(~is_eos, float("-inf"))
        old, new = self.finished, replace(candidates, scores=scores)
        both = Rows(
            torch.cat((F.pad(old.tokens, (0, 1), value=PAD), new.tokens), dim=1),
            torch.cat((old.log_probabilities, new.log_probabilities), dim=1),
            torch.cat((old.scores, new.scores), dim=1),
        )
        best = both.scores.argsort(dim=1, descending=True, stable=True)[:, : self.strategy.beam]
        self.finished = both.take(best)

    def is_done(self) -> Tensor:
        """Those for which the strategy's stop says so."""
        if self.strategy.stop == "first_beam":
            return self.finished.scores[:, -1] > float("-inf")
        # Log-probabilities only fall and divisors only rise: no alive sequence can end above this.
        bound = self.alive.log_probabilities[:, 0] / self.final_divisors
        deciding = 0 if self.strategy.stop == "optimistic" else -1
        return self.finished.scores[:, deciding] >= bound

    def of(self, sentences: Tensor) -> BeamFrontier:
        """Their sequences."""
        return BeamFrontier(
            strategy=self.strategy,
            alive=self.alive.of(sentences),
            finished=self.finished.of(sentences),
            final_divisors=self.final_divisors[sentences],
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The finished ones of each sentence; where there are none, the alive ones."""
        pairs = zip(self.finished.hypotheses(), self.alive.hypotheses(), strict=True)
        return [finished or alive for finished, alive in pairs]

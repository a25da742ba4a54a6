"""Diverse beam search (Vijayakumar et al. 2018): groups of beams that avoid each other's tokens.

The beam is divided into groups, which move one after the other. A token costs a group something for
every sequence of an earlier group that has just gone on with it (the paper's Hamming diversity), so
that the outputs differ by more than their last words. Where several hypotheses are wanted, a group
also avoids whole sequences of earlier groups, so that they do not find the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmt.data.vocabulary import EOS, PAD
from nmt.search.base import (
    Continuations,
    Hypotheses,
    Hypothesis,
    SearchState,
    best_first,
    strategies,
)
from nmt.search.beam import Beam, BeamState

LAST = 1e4
"""What a sequence that an earlier group holds costs: more than any other difference."""


@strategies.register("diverse_beam")
@dataclass(frozen=True, kw_only=True)
class DiverseBeam(Beam):
    """Beams side by side; hypotheses are ranked as in a beam, by what the model gives to them.

    The other keys are those of `beam`, and hold within each group.
    """

    groups: int = 2
    """Among which the beam is divided evenly; as many as the beam differ the most."""

    diversity: float = 0.5
    """What a token costs for every sequence of earlier groups that went on with it in the same
    step; natural logarithm. The paper has 0.2 to 0.8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1 or self.beam % self.groups:
            raise ValueError(f"a beam of {self.beam} cannot be divided into {self.groups} groups")
        if not self.diversity >= 0:
            raise ValueError(f"diversity must be at least 0, not {self.diversity:g}")

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """One empty sequence per sentence, from which all groups begin."""
        one = replace(self, beam=self.beam // self.groups, groups=1)
        share = -(-count // self.groups)
        nothing = source.new_empty((len(source), 0, 1))
        groups = [
            Group.before_the_first_step(
                one, source, max_lengths, share, taken=nothing[..., 0], held=nothing
            )
            for _ in range(self.groups)
        ]
        return DiverseBeamState(groups[0].alive, groups, count)


@dataclass
class Group(BeamState):
    """The beam of one group."""

    strategy: DiverseBeam
    taken: Tensor  # [B, n] int64, the tokens with which earlier groups have gone on in this step
    held: Tensor  # [B, m, T + 1] int64, their sequences after it, if these are to be avoided

    def _likeliest(self, continuations: Continuations, count: int) -> tuple[Tensor, Tensor]:
        count += self.taken.size(1) + self.held.size(1)  # which may fall back
        values, tokens = super()._likeliest(continuations, count)
        if not self.held.size(1):
            return values, tokens
        ends_again = (tokens == EOS) & self._are_held(tokens)
        return values.masked_fill(ends_again, float("-inf")), tokens

    @property
    def _least_tokens(self) -> int:
        return self.count + self.held.size(1)

    def _best_first(self, values: Tensor, tokens: Tensor) -> Tensor:
        same = tokens[..., None] == self.taken[:, None, None]  # [B, K, C, n]
        values = values - self.strategy.diversity * same.sum(-1)
        if self.held.size(1):
            values = values - LAST * self._are_held(tokens)
        return super()._best_first(values, tokens)

    def _are_held(self, tokens: Tensor) -> Tensor:
        """Whether an earlier group has the sequences that go on with tokens [B, K, C]."""
        before = self.alive.tokens[:, :, None] == self.held[:, None, :, :-1]  # [B, K, m, T]
        last = tokens[..., None] == self.held[:, None, None, :, -1]  # [B, K, C, m]
        return (before.all(-1)[:, :, None] & last).any(-1)


@dataclass
class DiverseBeamState(SearchState):
    """The groups, whose rows stand beside each other."""

    alive: Hypotheses
    groups: list[Group]
    count: int  # hypotheses that are wanted

    def advance(self, continuations: Continuations) -> Tensor:
        """Moves one group after the other."""
        given = continuations.log_probabilities
        sentences, rows, _ = given.shape
        is_main = self.alive.tokens.size(-1) == 1  # when all groups share the only row
        length = self.alive.tokens.size(-1) + 1
        held = self.alive.tokens.new_empty((sentences, 0, length))
        parents, first, taken = [], 0, held[..., -1]
        for group in self.groups:
            own = group.alive.tokens.size(1)
            part = slice(first, first + own)
            group.taken, group.held = taken, held
            flat = group.advance(Continuations(given[:, part]))
            group.alive = group.alive.without(group.is_done()[:, None])  # it waits for the others
            parents.append(flat // own * rows + flat % own + first)
            first += 0 if is_main else own
            exists = group.alive.scores > float("-inf")
            going_on = group.alive.tokens.where(exists[..., None], PAD)
            taken = torch.cat((taken, going_on[..., -1]), dim=1)
            if self.count > 1:
                held = torch.cat((held, going_on, group.finished.tokens), dim=1)
        self._join()
        return torch.cat(parents, dim=1)

    def _join(self) -> None:
        """Puts the rows of all groups beside each other, as the model sees them."""
        rows = [group.alive for group in self.groups]
        self.alive = Hypotheses(
            torch.cat([each.tokens for each in rows], dim=1),
            torch.cat([each.log_probabilities for each in rows], dim=1),
            torch.cat([each.scores for each in rows], dim=1),
        )

    def is_done(self) -> Tensor:
        """Those of which all groups are done."""
        return torch.stack([group.is_done() for group in self.groups]).all(0)

    def select_sentences(self, sentences: Tensor) -> DiverseBeamState:
        """Their groups."""
        return DiverseBeamState(
            self.alive.select_sentences(sentences),
            [group.select_sentences(sentences) for group in self.groups],
            self.count,
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What all groups have found, each output once; ends before what was cut."""
        rows = [it.hypotheses() for group in self.groups for it in (group.finished, group.alive)]
        most = sum(group.finished.scores.size(1) for group in self.groups)
        found = []
        for groups in zip(*rows, strict=True):
            different = {tuple(it.output): it for each in groups for it in each}.values()
            found.append(best_first(different, self.count)[:most])
        return found

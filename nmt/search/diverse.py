"""Diverse beam search (Vijayakumar et al. 2018): groups of beams that avoid each other's tokens.

The beam is divided into groups, which move one after the other. A token costs a group something for
every sequence of an earlier group that has just gone on with it (the paper's Hamming diversity), so
that the outputs differ by more than their last words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmt.data.format import PAD
from nmt.search.base import Continuations, Frontier, Hypothesis, Rows, strategies
from nmt.search.beam import Beam, BeamFrontier


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

    def open(self, source: Tensor, max_lengths: Tensor) -> Frontier:
        """One empty sequence per sentence, from which all groups begin."""
        one = replace(self, beam=self.beam // self.groups, groups=1)
        nothing = source.new_empty((len(source), 0))
        groups = [
            Group.before_the_first_step(one, source, max_lengths, taken=nothing)
            for _ in range(self.groups)
        ]
        return DiverseFrontier(groups[0].alive, groups)


@dataclass
class Group(BeamFrontier):
    """The beam of one group."""

    strategy: DiverseBeam
    taken: Tensor  # [B, n] int64, the tokens with which earlier groups have gone on in this step

    def _likeliest(self, continuations: Continuations, count: int) -> tuple[Tensor, Tensor]:
        return super()._likeliest(continuations, count + self.taken.size(1))  # which may fall back

    def _best_first(self, values: Tensor, tokens: Tensor) -> Tensor:
        same = tokens[..., None] == self.taken[:, None, None]  # [B, K, C, n]
        return super()._best_first(values - self.strategy.diversity * same.sum(-1), tokens)


@dataclass
class DiverseFrontier(Frontier):
    """The groups, whose rows stand beside each other."""

    alive: Rows
    groups: list[Group]

    def advance(self, continuations: Continuations) -> Tensor:
        """Moves one group after the other."""
        given = continuations.log_probabilities
        sentences, rows, _ = given.shape
        is_first = self.alive.tokens.size(-1) == 1  # when all groups share the only row
        parents, first, taken = [], 0, given.new_empty((sentences, 0), dtype=torch.int64)
        for group in self.groups:
            own = group.alive.tokens.size(1)
            part = slice(first, first + own)
            group.taken = taken
            flat = group.advance(Continuations(given[:, part]))
            group.alive = group.alive.without(group.is_done()[:, None])  # it waits for the others
            parents.append(flat // own * rows + flat % own + first)
            first += 0 if is_first else own
            exists = group.alive.scores > float("-inf")
            taken = torch.cat((taken, group.alive.tokens[:, :, -1].where(exists, PAD)), dim=1)
        self._join()
        return torch.cat(parents, dim=1)

    def _join(self) -> None:
        """Puts the rows of all groups beside each other, as the model sees them."""
        rows = [group.alive for group in self.groups]
        self.alive = Rows(
            torch.cat([each.tokens for each in rows], dim=1),
            torch.cat([each.log_probabilities for each in rows], dim=1),
            torch.cat([each.scores for each in rows], dim=1),
        )

    def is_done(self) -> Tensor:
        """Those of which all groups are done."""
        return torch.stack([group.is_done() for group in self.groups]).all(0)

    def of(self, sentences: Tensor) -> DiverseFrontier:
        """Their groups."""
        return DiverseFrontier(
            self.alive.of(sentences), [group.of(sentences) for group in self.groups]
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What all groups have found, each output once; ends before what was cut."""
        found = []
        for groups in zip(*(group.hypotheses() for group in self.groups), strict=True):
            different = {tuple(it.output): it for each in groups for it in each}.values()
            best_first = sorted(different, key=lambda it: -it.score)
            found.append([it for it in best_first if it.finished] or best_first)
        return found

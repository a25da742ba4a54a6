"""Diverse beam search (Vijayakumar et al. 2018): groups of beams avoid each other's tokens.

The groups of a beam advance one after the other. A token is penalised for every sequence of an
earlier group that took the same token in this step (the paper's Hamming diversity).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from nmt.data.vocabulary import EOS, PAD
from nmt.lazy import torch
from nmt.search.base import SearchState, strategies
from nmt.search.beam import Beam, BeamState, Stop
from nmt.search.hypotheses import Continuations, Hypotheses, Hypothesis, best_first

if TYPE_CHECKING:
    from torch import Tensor

EARLIER_GROUP_PENALTY = 1e4
"""Penalty for a sequence of an earlier group: larger than any other difference of scores."""


@strategies.register("diverse_beam")
@dataclass(frozen=True, kw_only=True)
class DiverseBeam(Beam):
    """Groups of beams that avoid each other's tokens.

    Hypotheses are ranked as in `beam`, without the diversity penalty. The keys of `beam` apply
    within each group.
    """

    stop: Stop = "optimistic"
    """As in `beam`, for each group."""

    groups: int = 2
    """Number of groups of equal size; a group per place of the beam gives the most diverse
    outputs."""

    diversity: float = 0.5
    """Penalty of a token for every sequence of earlier groups that took it in the same step, in
    natural logarithm. The paper uses 0.2 to 0.8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1 or self.beam % self.groups:
            raise ValueError(f"a beam of {self.beam} cannot be divided into {self.groups} groups")
        if not self.diversity >= 0:
            raise ValueError(f"diversity must be at least 0, not {self.diversity:g}")

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return one empty sequence per sentence, which all groups share."""
        # Within a group the search is a plain beam of the group's size.
        one = replace(self, beam=self.beam // self.groups, groups=1)
        # Rounded up: together the groups must fill the list.
        share = -(-count // self.groups)
        nothing = source.new_empty((len(source), 0, 1))
        groups = [
            BeamGroup.before_the_first_step(
                one, source, max_lengths, share, taken=nothing[..., 0], held=nothing
            )
            for _ in range(self.groups)
        ]
        return DiverseBeamState(groups[0].alive, groups, count)


@dataclass
class BeamGroup(BeamState):
    """The beam of one group."""

    strategy: DiverseBeam
    taken: Tensor  # [B, n] int64, tokens that earlier groups took in this step
    held: Tensor  # [B, m, T + 1] int64, sequences of earlier groups to avoid

    def _likeliest(self, continuations: Continuations, count: int) -> tuple[Tensor, Tensor]:
        count += self.taken.size(1) + self.held.size(1)  # in case the penalised tokens fall back
        values, tokens = super()._likeliest(continuations, count)
        if not self.held.size(1):
            return values, tokens
        # A finished sequence of an earlier group would only repeat an entry of the list.
        ends_again = (tokens == EOS) & self._are_held(tokens)
        return values.masked_fill(ends_again, float("-inf")), tokens

    @property
    def _least_tokens(self) -> int:
        # Tokens that lead to sequences of earlier groups may drop out, and the list must still
        # fill.
        return self.count + self.held.size(1)

    def _best_first(self, values: Tensor, tokens: Tensor) -> Tensor:
        same = tokens[..., None] == self.taken[:, None, None]  # [B, K, C, n]
        values = values - self.strategy.diversity * same.sum(-1)
        if self.held.size(1):
            # Finite, so that such a sequence still ranks before one that does not exist.
            values = values - EARLIER_GROUP_PENALTY * self._are_held(tokens)
        return super()._best_first(values, tokens)

    def _are_held(self, tokens: Tensor) -> Tensor:
        """Return a mask [B, K, C] of the tokens that lead to a sequence of an earlier group."""
        before = self.alive.tokens[:, :, None] == self.held[:, None, :, :-1]  # [B, K, m, T]
        last = tokens[..., None] == self.held[:, None, None, :, -1]  # [B, K, C, m]
        return (before.all(-1)[:, :, None] & last).any(-1)


@dataclass
class DiverseBeamState(SearchState):
    """The groups, with their rows concatenated."""

    alive: Hypotheses
    groups: list[BeamGroup]
    count: int  # requested hypotheses

    def advance(self, continuations: Continuations) -> Tensor:
        """Advance one group after the other."""
        log_probabilities = continuations.log_probabilities
        sentences, rows, _ = log_probabilities.shape
        is_main = self.alive.tokens.size(-1) == 1  # when all groups share the only row
        length = self.alive.tokens.size(-1) + 1
        held = self.alive.tokens.new_empty((sentences, 0, length))
        parents, first, taken = [], 0, held[..., -1]
        for group in self.groups:
            num_rows = group.alive.tokens.size(1)
            part = slice(first, first + num_rows)
            group.taken, group.held = taken, held
            flat = group.advance(Continuations(log_probabilities[:, part]))
            # A finished group waits for the other groups, without alive sequences.
            group.alive = group.alive.without(group.is_done()[:, None])
            # From rows of the group to rows of the whole batch.
            parents.append(flat // num_rows * rows + flat % num_rows + first)
            # In the first step all groups read the one row that exists.
            first += 0 if is_main else num_rows
            exists = group.alive.scores > float("-inf")
            # PAD is never a candidate, so rows without a sequence penalise nothing.
            continued = group.alive.tokens.where(exists[..., None], PAD)
            taken = torch.cat((taken, continued[..., -1]), dim=1)
            if self.count > 1:
                # Only a list needs distinct sequences; a single translation may come from any
                # group.
                held = torch.cat((held, continued, group.finished.tokens), dim=1)
        self._join()
        return torch.cat(parents, dim=1)

    def _join(self) -> None:
        """Concatenate the rows of all groups for the model."""
        alive = [group.alive for group in self.groups]
        self.alive = Hypotheses(
            torch.cat([hypotheses.tokens for hypotheses in alive], dim=1),
            torch.cat([hypotheses.log_probabilities for hypotheses in alive], dim=1),
            torch.cat([hypotheses.scores for hypotheses in alive], dim=1),
        )

    def is_done(self) -> Tensor:
        """Return the sentences of which all groups are done: [B] bool."""
        return torch.stack([group.is_done() for group in self.groups]).all(0)

    def select_sentences(self, sentences: Tensor) -> DiverseBeamState:
        """Return the groups of the given sentences."""
        return DiverseBeamState(
            self.alive.select_sentences(sentences),
            [group.select_sentences(sentences) for group in self.groups],
            self.count,
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the distinct hypotheses of all groups, finished ones before cut ones."""
        lists = [
            rows.hypotheses() for group in self.groups for rows in (group.finished, group.alive)
        ]
        most = sum(group.finished.scores.size(1) for group in self.groups)
        results = []
        for sentence in zip(*lists, strict=True):
            distinct = {tuple(hypothesis.output): hypothesis for hypothesis in chain(*sentence)}
            results.append(best_first(distinct.values(), self.count)[:most])
        return results

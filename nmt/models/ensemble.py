"""Ensembles: several models whose predictions are averaged at every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from nmt.models.base import AttentionMap, Model, State

Average = Literal["probability", "log_probability"]


class Ensemble(Model):
    """Average of several models with the same target vocabulary."""

    def __init__(
        self, members: Sequence[Model], weights: Sequence[float], average: Average = "probability"
    ) -> None:
        """Hold the models themselves, not copies.

        Args:
            members: at least one model.
            weights: one weight above 0 for each member; only their proportions matter.
            average: "probability" for the arithmetic mean of probabilities, "log_probability" for
                the geometric mean. The geometric mean is not normalised again: treat the result
                as logits.

        Raises:
            ValueError: the weights are not one number above 0 for each member.
        """
        super().__init__()
        if len(weights) != len(members) or not all(weight > 0 for weight in weights):
            raise ValueError(f"{len(members)} models need as many weights above 0, not {weights}")
        self.members = cast("list[Model]", nn.ModuleList(members))
        self.shares = [weight / sum(weights) for weight in weights]
        self._shares = torch.tensor(self.shares)  # no buffer: there is nothing to save
        self.average = average

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Raise a TypeError: every member has its own decoder output."""
        raise TypeError("an ensemble has no decoder output, and is not trained; ask for its logits")

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the averaged log-probabilities [B, T, V] of whole targets."""
        return self._mean([member(source, target) for member in self.members])

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the weighted mean [B, T, S] of the attention of members that read the source.

        Raises:
            NmtError: one of these members has no attention, or no member reads the source.
        """
        pairs = zip(self.shares, self.members, strict=True)
        reading = [(share, member) for share, member in pairs if member.reads_source]
        if not reading:
            return super().source_attention(source, target)
        total = sum(share for share, _ in reading)
        weights = [
            share / total * member.source_attention(source, target) for share, member in reading
        ]
        return torch.stack(weights).sum(0)

    def attention_maps(self, source: Tensor, target: Tensor) -> list[AttentionMap]:
        """Return none: every member has its own."""
        return []

    def start(self, source: Tensor) -> EnsembleState:
        """Return the states of all members."""
        return EnsembleState([member.start(source) for member in self.members])

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Raise a TypeError: every member has its own decoder output."""
        raise TypeError("an ensemble has no decoder output; ask for its logits")

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the averaged log-probabilities [B, K, V] of the next token."""
        assert isinstance(state, EnsembleState)
        pairs = zip(self.members, state.members, strict=True)
        return self._mean([member.step(tokens, member_state) for member, member_state in pairs])

    def _mean(self, logits: list[Tensor]) -> Tensor:
        log_probs = torch.stack([part.float().log_softmax(-1) for part in logits])  # [M, ..., V]
        self._shares = self._shares.to(log_probs.device)  # once, as a copy waits for the GPU
        shares = self._shares.view(-1, *[1] * (log_probs.dim() - 1))
        if self.average == "log_probability":
            return (shares * log_probs).sum(0)
        return (shares.log() + log_probs).logsumexp(0)


def members_of(model: Model) -> list[Model]:
    """Return the members of an ensemble, or a list with the one model."""
    return model.members if isinstance(model, Ensemble) else [model]


class EnsembleState:
    """Decoder states of all members, which hold the same rows."""

    def __init__(self, members: list[State]) -> None:
        self.members = members

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows; see :class:`nmt.models.base.State`."""
        for member in self.members:
            member.select(rows)

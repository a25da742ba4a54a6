"""Several models that vote on every token as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from nmt.models.base import Model, State

Average = Literal["probability", "log_probability"]


class Ensemble(Model):
    """Models of one target vocabulary, which give the mean of what they give alone."""

    def __init__(
        self, members: Sequence[Model], weights: Sequence[float], average: Average = "probability"
    ) -> None:
        """An ensemble that holds the models, not copies.

        Args:
            members: at least one.
            weights: of each, above 0; only their proportions matter.
            average: of probabilities (arithmetic mean) or their logarithms (geometric mean, not
                normalised again: whoever needs probabilities does that with any logits).

        Raises:
            ValueError: not a weight above 0 for each member.
        """
        super().__init__()
        if len(weights) != len(members) or not all(weight > 0 for weight in weights):
            raise ValueError(f"{len(members)} models need as many weights above 0, not {weights}")
        self.members = cast("list[Model]", nn.ModuleList(members))
        self.shares = [weight / sum(weights) for weight in weights]
        self.average = average

    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """Refused: each member has states of its own."""
        raise TypeError("an ensemble has no states, and is not trained; ask for its logits")

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The mean of the members' log-probabilities [B, T, V] for whole targets."""
        return self._mean([member(source, target) for member in self.members])

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """The mean of the members'; [B, T, S]."""
        given = [member.source_attention(source, target) for member in self.members]
        return sum(share * each for share, each in zip(self.shares, given, strict=True))  # type: ignore[return-value]

    def start(self, source: Tensor, max_steps: int) -> EnsembleState:
        """The members' states."""
        return EnsembleState([member.start(source, max_steps) for member in self.members])

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Refused, as whole targets' are."""
        raise TypeError("an ensemble has no states; ask for its logits")

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """The mean of the members' log-probabilities [B, K, V] of the next token."""
        assert isinstance(state, EnsembleState)
        pairs = zip(self.members, state.members, strict=True)
        return self._mean([member.step(tokens, own) for member, own in pairs])

    def _mean(self, logits: list[Tensor]) -> Tensor:
        given = torch.stack([each.float().log_softmax(-1) for each in logits])  # [M, ..., V]
        shares = given.new_tensor(self.shares).view(-1, *[1] * (given.dim() - 1))
        if self.average == "log_probability":
            return (shares * given).sum(0)
        return (shares.log() + given).logsumexp(0)


def members_of(model: Model) -> list[Model]:
    """Those of an ensemble, or the one model."""
    return model.members if isinstance(model, Ensemble) else [model]


class EnsembleState:
    """The states of the members, which follow the same rows."""

    def __init__(self, members: list[State]) -> None:
        self.members = members

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats, reorders or drops rows; see :class:`nmt.models.base.State`."""
        for member in self.members:
            member.select(rows)

"""A model of a few of its target tokens, each sentence with its own.

The output layer multiplies the tokens that any sentence of the batch may need; logits of those that
a sentence may not choose are minus infinity. So what a sentence gets is what it gets alone: its
tokens share all probability, whatever others are in the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmt.models.base import Model, State
from nmt.models.ensemble import Ensemble


def shortlisted(
    model: Model, narrow: Callable[[Model, Tensor], nn.Module], tokens: Tensor, allowed: Tensor
) -> Model:
    """The model, or the ensemble, to be stepped through; targets are places in `tokens`.

    Args:
        model: what gives the states.
        narrow: gives a layer with the outputs [U] alone of a model that is no ensemble.
        tokens: [U] int64, ascending, with all special ids.
        allowed: [B, U] bool, which of them each sentence may choose.
    """
    if not isinstance(model, Ensemble):
        return Shortlisted(model, narrow(model, tokens), tokens, allowed)
    # Each member by itself, for the mean is one of probabilities.
    members = [shortlisted(member, narrow, tokens, allowed) for member in model.members]
    return Ensemble(members, model.shares, model.average)


class Shortlisted(Model):
    """One model that is no ensemble, for decoding alone."""

    def __init__(self, model: Model, few: nn.Module, tokens: Tensor, allowed: Tensor) -> None:
        super().__init__()
        self.model = model
        self.few = few
        self.tokens = tokens
        nothing = torch.zeros(allowed.shape, device=allowed.device)
        # To be added: a CPU does that in a tenth of the time of a fill where a mask is set.
        self.logits_mask = nothing.masked_fill(~allowed, float("-inf"))[:, None]  # [B, 1, U]
        self.train(model.training)

    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """Refused: whole targets are given by the whole model."""
        raise TypeError("a shortlist is for search; ask the model itself")

    def start(self, source: Tensor, max_steps: int) -> ShortlistedState:
        """The model's state, and what each sentence may not choose."""
        return ShortlistedState(self.model.start(source, max_steps), self.logits_mask)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """The model's, after tokens [B, K] given as places."""
        assert isinstance(state, ShortlistedState)
        return self.model.decode_step(self.tokens[tokens], state.inner)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Logits [B, K, U], minus infinity where a sentence may not choose the token."""
        assert isinstance(state, ShortlistedState)
        logits: Tensor = self.few(self.decode_step(tokens, state))
        return logits.add_(state.logits_mask)


class ShortlistedState:
    """A model's state, and what each of its sentences may not choose [B, 1, U]."""

    def __init__(self, inner: State, logits_mask: Tensor) -> None:
        self.inner = inner
        self.logits_mask = logits_mask
        self.rows = 1

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats, reorders or drops rows; see :class:`nmt.models.base.State`."""
        self.inner.select(rows)
        self.logits_mask = self.logits_mask.index_select(0, rows[:, 0] // self.rows)
        self.rows = rows.shape[1]

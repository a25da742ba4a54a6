"""A model restricted to a reduced vocabulary, with a shortlist for each sentence.

The output layer computes the tokens that any sentence of the batch may choose. Tokens outside a
sentence's own shortlist get logits of minus infinity. Probabilities are therefore normalised over
the sentence's own shortlist, and do not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nmt.models.base import Model, State
from nmt.models.ensemble import Ensemble

Product = Callable[[Tensor], Tensor]
"""An output layer: decoder outputs [..., D] to logits [..., U]."""


def shortlisted(
    model: Model, narrow: Callable[[Model, Tensor], Product], tokens: Tensor, allowed: Tensor
) -> Model:
    """Return a model, or an ensemble, for search over reduced ids: indices into `tokens`.

    Args:
        model: a model or an ensemble.
        narrow: returns the output layer of one model, reduced to the tokens [U].
        tokens: [U] int64, the vocabulary id of each reduced id, ascending, with all special ids.
        allowed: [B, U] bool, True at tokens that the sentence may choose; each token at one at
            least.
    """
    if not isinstance(model, Ensemble):
        return Shortlisted(model, narrow(model, tokens), tokens, allowed)
    # Each member by itself: an ensemble averages normalised probabilities.
    members = [shortlisted(member, narrow, tokens, allowed) for member in model.members]
    return Ensemble(members, model.shares, model.average)


class Shortlisted(Model):
    """One model with a reduced vocabulary, for search only; not for ensembles."""

    def __init__(self, model: Model, few: Product, tokens: Tensor, allowed: Tensor) -> None:
        super().__init__()
        self.model = model
        self.few = few
        self.tokens = tokens
        self.logits_mask: Tensor | None = None  # [B, 1, U]; None for a lone sentence
        if len(allowed) > 1:
            nothing = torch.zeros(allowed.shape, device=allowed.device)
            # Added to logits: on a CPU an addition takes a tenth of the time of a masked fill.
            self.logits_mask = nothing.masked_fill(~allowed, float("-inf"))[:, None]
        self.training = model.training

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Raise a TypeError: score whole targets with the full model."""
        raise TypeError("a shortlist is for search; ask the model itself")

    def start(self, source: Tensor) -> ShortlistedState:
        """Return the model's state with the logits mask of each sentence."""
        return ShortlistedState(self.model.start(source), self.logits_mask)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the model's decoder output [B, K, D] after `tokens` [B, K], reduced ids."""
        assert isinstance(state, ShortlistedState)
        return self.model.decode_step(self.tokens[tokens], state.inner)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Return logits [B, K, U], minus infinity at tokens that the sentence may not choose."""
        assert isinstance(state, ShortlistedState)
        logits = self.few(self.decode_step(tokens, state))
        return logits if state.logits_mask is None else logits.add_(state.logits_mask)


class ShortlistedState:
    """A model's state, and the logits mask of each sentence [B, 1, U], if sentences differ."""

    def __init__(self, inner: State, logits_mask: Tensor | None) -> None:
        self.inner = inner
        self.logits_mask = logits_mask
        self.rows = 1

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows; see :class:`nmt.models.base.State`."""
        self.inner.select(rows)
        if self.logits_mask is not None:
            self.logits_mask = self.logits_mask.index_select(0, rows[:, 0] // self.rows)
        self.rows = rows.shape[1]

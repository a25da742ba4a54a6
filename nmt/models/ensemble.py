"""Several models as one (averaged predictions), and one model with a shortlist per sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        # Language models attend to no source: the contract's error says so.
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
        # Normalised first: logits of different models have no common scale.
        log_probs = torch.stack([part.float().log_softmax(-1) for part in logits])  # [M, ..., V]
        self._shares = self._shares.to(log_probs.device)  # once, as a copy waits for the GPU
        shares = self._shares.view(-1, *[1] * (log_probs.dim() - 1))
        if self.average == "log_probability":
            return (shares * log_probs).sum(0)
        # The mean of probabilities, computed among logarithms so that small ones do not underflow.
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
    """One model with a reduced vocabulary, for search only; not for ensembles.

    Log-probabilities are normalised over the sentence's own shortlist, so they do not
    depend on the rest of the batch.
    """

    def __init__(self, model: Model, few: Product, tokens: Tensor, allowed: Tensor) -> None:
        super().__init__()
        self.model = model
        self.few = few
        self.tokens = tokens
        self.logits_mask: Tensor | None = None  # [B, 1, U]; None for a lone sentence
        # A lone sentence's shortlist is the union itself.
        if len(allowed) > 1:
            nothing = torch.zeros(allowed.shape, device=allowed.device)
            # Added to logits: on a CPU an addition takes a tenth of the time of a masked fill.
            self.logits_mask = nothing.masked_fill(~allowed, float("-inf"))[:, None]
        # A new module begins in training mode, also around a model in evaluation mode.
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
        # The search speaks reduced ids; embeddings know ids of the whole vocabulary.
        return self.model.decode_step(self.tokens[tokens], state.inner)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Return logits [B, K, U], minus infinity at tokens that the sentence may not choose."""
        assert isinstance(state, ShortlistedState)
        logits = self.few(self.decode_step(tokens, state))
        # The batch shares one product over the union of its shortlists; the mask keeps a sentence
        # from tokens of its neighbours, so the batch never changes a translation.
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

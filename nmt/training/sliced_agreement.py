"""Output layer and loss of two passes that are to agree (R-Drop, SimCut), in slices of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import PAD
from nmt.training.output_slices import SLICE_ELEMENTS, Gradients, Masses, Targets, in_autocast_dtype


class Shares(NamedTuple):
    """Weights of what one of two passes adds to the loss."""

    cross_entropy: float
    divergence: float
    """Of KL(p || q), with p this pass's predictions and q the other's."""


class SlicedAgreement(torch.autograd.Function):
    """Cross-entropies of two passes and divergences between them, a slice of tokens at a time.

    The passes are the halves of the decoder output [2P, D]. The logits of a slice are computed
    once; the gradient reaches both passes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        shares: tuple[Shares, Shares],
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihoods, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [2P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            targets: of the P tokens.
            shares: what counts of each pass.
            wants_gradient: whether to compute the gradients.

        Returns:
            The loss, and the negative log-likelihood of each pass [2].
        """
        labels, masses, token_weights = targets
        device, tokens = decoder_output.device.type, len(labels)
        inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        # A slice holds two passes, and some eight tables [R, V] of float32 at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (4 * len(weight)))
        sums = torch.zeros(2, 2, dtype=torch.float64, device=decoder_output.device)
        gradients = Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, tokens), len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, tokens, rows):
                gold = labels[first : first + rows, None]
                factors = (
                    None if token_weights is None else token_weights[first : first + rows, None]
                )
                parts = [slice(start, start + len(gold)) for start in (first, tokens + first)]
                log_p = [
                    F.linear(inputs[part], matrix, offset).log_softmax(-1, dtype=torch.float32)
                    for part in parts
                ]
                p = [table.exp() for table in log_p]
                for one, other in ((0, 1), (1, 0)):
                    pair = (log_p[one], log_p[other], p[one], p[other])
                    *costs, d_logits = _agreement(*pair, gold, masses, shares[one], shares[other])
                    if factors is not None:
                        costs[0] *= factors
                        d_logits *= factors
                    sums[one] += torch.stack([cost.sum(dtype=torch.float64) for cost in costs])
                    if gradients is not None:
                        gradients.add(parts[one], d_logits, inputs, matrix, room[: len(gold)])
        if gradients is not None:
            gradients.save(ctx, decoder_output, weight)
        loss, nll = sums[:, 0].sum().float(), sums[:, 1].float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *Gradients.backward(ctx, d_loss), None, None, None


def _agreement(
    log_p: Tensor,
    log_q: Tensor,
    p: Tensor,
    q: Tensor,
    gold: Tensor,
    masses: Masses,
    p_shares: Shares,
    q_shares: Shares,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of a slice of one pass, p, beside another, q, and its gradient.

    Args:
        log_p: logarithms of this pass's predictions [R, V] float32.
        log_q: those of the other pass [R, V].
        p: the predictions themselves [R, V].
        q: and the other pass's [R, V].
        gold: labels [R, 1].
        masses: of the target distribution.
        p_shares: what counts of this pass.
        q_shares: what counts of the other pass.

    Returns:
        The loss [R, 1]; the negative log-likelihood [R, 1]; and the gradient [R, V] of this loss
        and of the other pass's divergence with respect to this pass's logits.
    """
    nll = -log_p.gather(1, gold)
    cross_entropy = (masses.label - masses.other) * nll
    cross_entropy -= masses.other * log_p.sum(1, keepdim=True)
    cross_entropy -= (masses.pad - masses.other) * log_p[:, PAD, None]
    ratio = log_p - log_q
    divergence = (p * ratio).sum(1, keepdim=True)
    loss = p_shares.cross_entropy * cross_entropy + p_shares.divergence * divergence
    d_logits = ratio.mul_(p_shares.divergence)
    d_logits += p_shares.cross_entropy + q_shares.divergence - p_shares.divergence * divergence
    d_logits *= p
    d_logits -= q_shares.divergence * q
    d_logits -= p_shares.cross_entropy * masses.other
    d_logits[:, PAD] -= p_shares.cross_entropy * (masses.pad - masses.other)
    label = torch.full_like(nll, -p_shares.cross_entropy * (masses.label - masses.other))
    return loss, nll, d_logits.scatter_add_(1, gold, label)

"""Output layer, softmax and cross-entropy fused, a slice of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.data.vocabulary import PAD
from nmt.runtime.own_kernels import has_own_kernels
from nmt.training.output_slices import SLICE_ELEMENTS, Gradients, Masses, Targets, in_autocast_dtype


class SlicedLoss(torch.autograd.Function):
    """Loss and gradient of a linear layer and a softmax, a slice of tokens at a time.

    The gradient with respect to the logits has a closed form: softmax minus target distribution.
    The forward pass therefore computes the gradients of decoder output and weights at once, and
    keeps no logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            targets: of the P tokens.
            wants_gradient: whether to compute the gradients.
        """
        labels, masses, token_weights = targets
        device = decoder_output.device.type
        inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        rows = max(1, SLICE_ELEMENTS[device] // len(weight))
        terms = inputs.new_empty(3, len(inputs), dtype=torch.float32)
        gradients = Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, len(inputs)), len(weight))
        differentiate_ = _differentiation(decoder_output.device)
        with torch.autocast(device, enabled=False):
            for first in range(0, len(inputs), rows):
                part = slice(first, first + rows)
                gold = labels[part]
                logits = torch.mm(inputs[part], matrix.t(), out=room[: len(gold)])
                if offset is not None:
                    logits += offset
                share = None if token_weights is None else token_weights[part]
                d_logits = differentiate_(
                    logits, gold, masses, share, terms[:, part], gradients is not None
                )
                if gradients is not None:
                    gradients.add(part, d_logits, inputs, matrix, room=logits)
        weighted, likelihoods = terms, terms[0]
        if token_weights is not None:
            weighted, likelihoods = terms * token_weights, likelihoods * (labels != PAD)
        nll = likelihoods.sum(dtype=torch.float64)
        cost, log_normalisers, pad_logits = weighted.sum(1, dtype=torch.float64)
        all_logits = _SumOfLogits(inputs, weight, offset, token_weights)
        loss = (masses.label - masses.other) * cost
        loss += masses.other * (len(weight) * log_normalisers - all_logits.value())
        loss += (masses.pad - masses.other) * (log_normalisers - pad_logits)
        if gradients is not None:
            if masses.other:
                all_logits.subtract_gradient(gradients, masses.other)
            gradients.save(ctx, decoder_output, weight)
        loss, nll = loss.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *Gradients.backward(ctx, d_loss), None, None


def _differentiation(device: torch.device) -> Callable[..., Tensor]:
    """Return :func:`differentiate_`, or the kernel that does the same."""
    if device.type == "cuda" and has_own_kernels():
        from nmt.training import fused_loss

        return fused_loss.differentiate_
    return differentiate_


def differentiate_(
    logits: Tensor,
    labels: Tensor,
    masses: Masses,
    weights: Tensor | None,
    terms: Tensor,
    wants_gradient: bool,
) -> Tensor:
    """Compute the terms of the loss of some tokens, and its gradient.

    Args:
        logits: [R, V] in the dtype of the matrix products; overwritten.
        labels: [R] int64.
        masses: of the target distribution.
        weights: [R] float32, factors of the tokens' gradients; None for 1.
        terms: [3, R] float32; gets each token's negative log-likelihood, the logarithm of the sum
            of the exponentials of its logits, and the logit of padding.
        wants_gradient: whether the gradient is needed.

    Returns:
        If it is wanted, the gradient of the loss with respect to the logits, without the mass that
        is the same for all tokens of the vocabulary: [R, V], in the dtype of `logits` or in
        float32.
    """
    labels = labels[:, None]
    label_logits, pads = logits.gather(1, labels).float(), logits[:, PAD].clone().float()
    p, label_p, total, log_z = _softmax_without_label_(logits, labels)
    terms.copy_(torch.stack(((log_z - label_logits).squeeze(1), log_z.squeeze(1), pads)))
    if wants_gradient:
        p.scatter_(1, labels, (label_p - (masses.label - masses.other) * total).to(p.dtype))
        p[:, PAD] -= masses.pad - masses.other
        if weights is not None:
            p *= weights[:, None]
    return p


class _SumOfLogits:
    """The weighted sum of the logits over tokens and vocabulary: the product of two sums."""

    def __init__(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None, token_weights: Tensor | None
    ) -> None:
        self.bias, self.weight_sum = bias, weight.sum(0)
        self.shares: Tensor | float = 1.0
        self.tokens: Tensor | int = len(inputs)
        if token_weights is not None:
            self.shares, self.tokens = token_weights[:, None], token_weights.sum()
            inputs = inputs * self.shares
        self.input_sum = inputs.sum(0, dtype=torch.float32)

    def value(self) -> Tensor:
        total = self.input_sum.double() @ self.weight_sum.double()
        if self.bias is not None:
            total += self.tokens * self.bias.sum(dtype=torch.float64)
        return total

    def subtract_gradient(self, gradients: Gradients, factor: float) -> None:
        """Subtract the gradient of the sum, times a factor."""
        gradients.inputs -= factor * self.weight_sum * self.shares
        gradients.weight -= factor * self.input_sum
        if gradients.bias is not None:
            gradients.bias -= factor * self.tokens


def _softmax_without_label_(
    logits: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the softmax of each row, in place, with zero for the label, and its label apart.

    Args:
        logits: [R, V] in the dtype of the matrix products.
        labels: [R, 1] int64.

    Returns:
        The rounded probabilities [R, V] of all tokens but the label; and, each [R, 1] float32, the
        label's probability, the sum of all rounded probabilities, and the logarithm of the sum of
        the exponentials of the logits.
    """
    highest = logits.amax(1, keepdim=True).float()
    p = _softmax_(logits)
    highest_p, label_p = p.amax(1, keepdim=True).float(), p.gather(1, labels).float()
    # bf16 rounds a probability near 1 to 1, so sum the other probabilities.
    p.scatter_(1, labels, 0.0)
    total = label_p + p.sum(1, keepdim=True).float()
    # Use the likeliest token: its probability is never too small for a logarithm.
    return p, label_p, total, highest - (highest_p / total).log()


def _softmax_(logits: Tensor) -> Tensor:
    """Return the softmax of each row, in place; fp16 is converted, as it rounds small ones to 0."""
    p = logits.float() if logits.dtype == torch.float16 else logits
    return torch.softmax(p, dim=-1, out=p)

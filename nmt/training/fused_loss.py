"""Output layer, softmax and loss fused, computed over slices of the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.data.vocabulary import PAD

SLICE_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Number of logits of a slice of tokens, by device; in float32 they take 32 MiB and 256 MiB.

Slices are large enough to keep the device busy. Logits have the dtype of the matrix products.
"""


def log_probabilities(decoder_output: Tensor, output: nn.Linear, labels: Tensor) -> Tensor:
    """Return the log-probability of each label, in nats: [P] float32.

    Computes the logits of one slice of tokens at a time, and again for the gradient.

    Args:
        decoder_output: decoder output [P, D].
        output: the model's output layer [V, D].
        labels: [P] int64.
    """
    rows = max(1, SLICE_ELEMENTS[decoder_output.device.type] // output.out_features)
    parts = [
        checkpoint(
            _log_probabilities,
            decoder_output[first : first + rows],
            output.weight,
            output.bias,
            labels[first : first + rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for first in range(0, max(1, len(decoder_output)), rows)
    ]
    return torch.cat(parts)


def _log_probabilities(
    decoder_output: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    inputs, matrix, offset = _in_autocast_dtype(decoder_output, weight, bias)
    with torch.autocast(decoder_output.device.type, enabled=False):
        logits = F.linear(inputs, matrix, offset).float()
        return -F.cross_entropy(logits, labels, reduction="none")


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
        labels: Tensor,
        masses: tuple[float, float, float],
        wants_gradient: bool,
        token_weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            labels: [P] int64.
            masses: target probability of the label, of every other token, and of padding.
            wants_gradient: whether to compute the gradients.
            token_weights: factors of the loss [P], but not of the likelihood; None for 1.
        """
        label_mass, other_mass, pad_mass = masses
        device = decoder_output.device.type
        inputs, matrix, offset = _in_autocast_dtype(decoder_output, weight, bias)
        rows = max(1, SLICE_ELEMENTS[device] // len(weight))
        sums = torch.zeros(4, dtype=torch.float64, device=decoder_output.device)
        gradients = _Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, len(inputs)), len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(inputs), rows):
                part = slice(first, first + rows)
                gold = labels[part, None]
                logits = torch.mm(inputs[part], matrix.t(), out=room[: len(gold)])
                if offset is not None:
                    logits += offset
                gold_logits, pads = logits.gather(1, gold).float(), logits[:, PAD].clone().float()
                p, gold_p, total, log_z = _softmax_without_label_(logits, gold)
                share = None if token_weights is None else token_weights[part]
                sums += _sums(log_z.squeeze(1), gold_logits.squeeze(1), pads, share)
                if gradients is None:
                    continue
                # The gradient without -other_mass in all places, which is added after the loop.
                p.scatter_(1, gold, (gold_p - (label_mass - other_mass) * total).to(p.dtype))
                p[:, PAD] -= pad_mass - other_mass
                if share is not None:
                    p *= share[:, None]
                gradients.add(part, p, inputs, matrix, room=logits)
        nll, cost, log_normalisers, pad_logits = sums
        all_logits = _SumOfLogits(inputs, weight, offset, token_weights)
        loss = (label_mass - other_mass) * cost
        loss += other_mass * (len(weight) * log_normalisers - all_logits.value())
        loss += (pad_mass - other_mass) * (log_normalisers - pad_logits)
        if gradients is not None:
            if other_mass:
                all_logits.subtract_gradient(gradients, other_mass)
            gradients.save(ctx, decoder_output, weight)
        loss, nll = loss.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *_chain(ctx, d_loss), None, None, None, None


def _sums(log_z: Tensor, gold: Tensor, pad: Tensor, weights: Tensor | None) -> Tensor:
    """Return sums over tokens, as float64 [4], of which all but the first are weighted.

    They are those of the negative log-likelihood, twice, of the normaliser's logarithm, and of the
    logit of padding.
    """
    values = torch.stack((log_z - gold, log_z - gold, log_z, pad))  # [4, R]
    if weights is not None:
        values[1:] *= weights
    return values.sum(1, dtype=torch.float64)


@dataclass
class _Gradients:
    """Gradients of a sliced loss with respect to decoder output, weight and bias, to be filled."""

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def zeros(cls, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> _Gradients:
        """Return gradients in the shapes of these tensors, to which slices are added."""
        return cls(
            torch.empty_like(inputs),  # each slice sets its rows
            torch.zeros_like(weight, dtype=torch.float32),
            None if bias is None else torch.zeros_like(bias, dtype=torch.float32),
        )

    def add(
        self, part: slice, d_logits: Tensor, inputs: Tensor, matrix: Tensor, room: Tensor
    ) -> None:
        """Add the gradients of a slice of tokens, from those with respect to its logits.

        Args:
            part: which of the tokens.
            d_logits: [R, V] in any floating dtype.
            inputs: of the output layer, of all tokens [P, D].
            matrix: weights of the output layer [V, D] in the dtype of the matrix products.
            room: [R, V] in that dtype; overwritten.
        """
        if self.bias is not None:
            self.bias += d_logits.sum(0, dtype=torch.float32)
        if d_logits.dtype != room.dtype:
            d_logits = room.copy_(d_logits)
        torch.mm(d_logits, matrix, out=self.inputs[part])
        self.weight += d_logits.t() @ inputs[part]

    def save(self, ctx: Any, decoder_output: Tensor, weight: Tensor) -> None:
        """Keep the gradients for the backward pass, with the dtypes of its results."""
        ctx.save_for_backward(self.inputs, self.weight, self.bias)
        ctx.dtypes = (decoder_output.dtype, weight.dtype)


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

    def subtract_gradient(self, gradients: _Gradients, factor: float) -> None:
        """Subtract the gradient of the sum, times a factor."""
        gradients.inputs -= factor * self.weight_sum * self.shares
        gradients.weight -= factor * self.input_sum
        if gradients.bias is not None:
            gradients.bias -= factor * self.tokens


class SlicedDivergence(torch.autograd.Function):
    """Weighted sum of KL(p1 || p2) and KL(p2 || p1), and its gradient, a slice at a time.

    Summed over the tokens, in nats. p1 and p2 are the predictions from the first and the second
    half of the decoder output [2P, D]; the gradient reaches both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shares: tuple[float, float],
        wants_gradient: bool,
        token_weights: Tensor | None,
    ) -> Tensor:
        """Return the divergence and, with `wants_gradient`, keep its gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [2P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            shares: weights of KL(p1 || p2) and KL(p2 || p1).
            wants_gradient: whether to compute the gradients.
            token_weights: factors of the divergences [P]; None for 1.
        """
        device = decoder_output.device.type
        inputs, matrix, offset = _in_autocast_dtype(decoder_output, weight, bias)
        halves = inputs.view(2, len(inputs) // 2, inputs.shape[1])  # [2, P, D]
        share = torch.tensor(shares, device=decoder_output.device)[:, None, None]
        # A slice holds two passes, and about four tables [2, R, V] at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (8 * len(weight)))
        total = torch.zeros((), dtype=torch.float64, device=decoder_output.device)
        gradients = _Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        with torch.autocast(device, enabled=False):
            for first in range(0, halves.shape[1], rows):
                part = halves[:, first : first + rows]  # [2, R, D]
                log_p = F.linear(part, matrix, offset).log_softmax(-1, dtype=torch.float32)
                p = log_p.exp()  # [2, R, V]
                log_ratio = log_p - log_p.flip(0)
                divergences = (p * log_ratio).sum(-1, keepdim=True)  # [2, R, 1]
                factors = share
                if token_weights is not None:
                    factors = share * token_weights[first : first + rows, None]
                total += (factors * divergences).sum(dtype=torch.float64)
                if gradients is None:
                    continue
                # With respect to one pass's logits: the divergence from that pass, then that to it.
                d_logits = factors * p * (log_ratio - divergences)
                d_logits += factors.flip(0) * (p - p.flip(0))
                d_logits = d_logits.to(matrix.dtype)
                gradients.inputs.view_as(halves)[:, first : first + rows] = d_logits @ matrix
                gradients.weight += d_logits.flatten(0, 1).t() @ part.flatten(0, 1)
                if gradients.bias is not None:
                    gradients.bias += d_logits.sum((0, 1), dtype=torch.float32)
        if gradients is not None:
            gradients.save(ctx, decoder_output, weight)
        return total.float()

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *_chain(ctx, d_loss), None, None, None


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


def _in_autocast_dtype(
    decoder_output: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return decoder output, weight and bias in the dtype that autocast would use."""
    device = decoder_output.device.type
    low = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if low else weight.dtype
    return decoder_output.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _chain(ctx: Any, d_loss: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients that the forward pass saved, times the gradient of the loss."""
    d_inputs, d_weight, d_bias = ctx.saved_tensors
    states_dtype, weight_dtype = ctx.dtypes
    return (
        (d_inputs * d_loss).to(states_dtype),
        (d_weight * d_loss).to(weight_dtype),
        None if d_bias is None else d_bias * d_loss,
    )

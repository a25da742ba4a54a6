"""Output layer, softmax and loss fused, computed over slices of the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.data.vocabulary import PAD


class Shares(NamedTuple):
    """Weights of what one of two passes adds to the loss."""

    cross_entropy: float
    divergence: float
    """Of KL(p || q), with p this pass's predictions and q the other's."""


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
        labels: Tensor,
        masses: tuple[float, float, float],
        shares: tuple[Shares, Shares],
        wants_gradient: bool,
        token_weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihoods, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [2P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            labels: [P] int64.
            masses: target probability of the label, of every other token, and of padding.
            shares: what counts of each pass.
            wants_gradient: whether to compute the gradients.
            token_weights: factors of the loss [P], but not of the likelihoods; None for 1.

        Returns:
            The loss, and the negative log-likelihood of each pass [2].
        """
        device, tokens = decoder_output.device.type, len(labels)
        inputs, matrix, offset = _in_autocast_dtype(decoder_output, weight, bias)
        # A slice holds two passes, and some eight tables [R, V] of float32 at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (4 * len(weight)))
        sums = torch.zeros(2, 2, dtype=torch.float64, device=decoder_output.device)
        gradients = _Gradients.zeros(inputs, weight, bias) if wants_gradient else None
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
        return *_chain(ctx, d_loss), None, None, None, None, None


def _agreement(
    log_p: Tensor,
    log_q: Tensor,
    p: Tensor,
    q: Tensor,
    gold: Tensor,
    masses: tuple[float, float, float],
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
        masses: target probability of the label, of every other token, and of padding.
        p_shares: what counts of this pass.
        q_shares: what counts of the other pass.

    Returns:
        The loss [R, 1]; the negative log-likelihood [R, 1]; and the gradient [R, V] of this loss
        and of the other pass's divergence with respect to this pass's logits.
    """
    label_mass, other_mass, pad_mass = masses
    nll = -log_p.gather(1, gold)
    cross_entropy = (label_mass - other_mass) * nll
    cross_entropy -= other_mass * log_p.sum(1, keepdim=True)
    cross_entropy -= (pad_mass - other_mass) * log_p[:, PAD, None]
    ratio = log_p - log_q
    divergence = (p * ratio).sum(1, keepdim=True)
    loss = p_shares.cross_entropy * cross_entropy + p_shares.divergence * divergence
    d_logits = ratio.mul_(p_shares.divergence)
    d_logits += p_shares.cross_entropy + q_shares.divergence - p_shares.divergence * divergence
    d_logits *= p
    d_logits -= q_shares.divergence * q
    d_logits -= p_shares.cross_entropy * other_mass
    d_logits[:, PAD] -= p_shares.cross_entropy * (pad_mass - other_mass)
    label = torch.full_like(nll, -p_shares.cross_entropy * (label_mass - other_mass))
    return loss, nll, d_logits.scatter_add_(1, gold, label)


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

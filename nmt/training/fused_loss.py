"""Output layer, softmax and loss in one pass over slices of the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.data.vocabulary import PAD

SLICE_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Logits held at a time, by device, in the type of the products (in float32 32 MiB, 256 MiB): the
loss walks over the tokens in slices, large enough to keep the device busy."""


def log_probabilities(states: Tensor, output: nn.Linear, labels: Tensor) -> Tensor:
    """What a linear layer and a softmax give to each label: [P] float32, in nats.

    Logits are made for a slice of tokens at a time, and made again for the gradient.

    Args:
        states: [P, D].
        output: the model's output layer [V, D].
        labels: [P] int64.
    """
    rows = max(1, SLICE_ELEMENTS[states.device.type] // output.out_features)
    parts = [
        checkpoint(
            _log_probabilities,
            states[first : first + rows],
            output.weight,
            output.bias,
            labels[first : first + rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for first in range(0, max(1, len(states)), rows)
    ]
    return torch.cat(parts)


def _log_probabilities(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    inputs, matrix, offset = _in_autocast_dtype(states, weight, bias)
    with torch.autocast(states.device.type, enabled=False):
        logits = F.linear(inputs, matrix, offset).float()
        return -F.cross_entropy(logits, labels, reduction="none")


class SlicedLoss(torch.autograd.Function):
    """Loss and gradient of a linear layer and a softmax, a slice of tokens at a time.

    The gradient with respect to logits is known in closed form (softmax minus target), so it is
    taken to the states and the weights at once, and logits are never kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        masses: tuple[float, float, float],
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss and, where wanted, keep its gradients."""
        label_mass, other_mass, pad_mass = masses
        device = states.device.type
        inputs, matrix, offset = _in_autocast_dtype(states, weight, bias)
        rows = max(1, SLICE_ELEMENTS[device] // len(weight))
        # Summed over the tokens and the vocabulary, logits are a product of two sums.
        input_sum, weight_sum = inputs.sum(0, dtype=torch.float32), weight.sum(0)
        all_logits = input_sum.double() @ weight_sum.double()
        nll = torch.zeros((), dtype=torch.float64, device=states.device)
        log_normalisers, pad_logits = torch.zeros_like(nll), torch.zeros_like(nll)
        d_states = torch.empty_like(inputs) if wants_gradient else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        room = inputs.new_empty(min(rows, len(inputs)), len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(inputs), rows):
                part = slice(first, first + rows)
                gold = labels[part, None]
                each = torch.arange(len(gold), device=gold.device)[:, None]
                logits = torch.mm(inputs[part], matrix.t(), out=room[: len(gold)])
                if offset is not None:
                    logits += offset
                gold_logits = logits.gather(1, gold).float()
                highest = logits.amax(1, keepdim=True).float()
                pad_logits += logits[:, PAD].sum(dtype=torch.float64)
                p = _softmax_(logits)
                highest_p, gold_p = p.amax(1, keepdim=True).float(), p.gather(1, gold).float()
                # Of rounded probabilities, what is left of a label's near one is the others' sum.
                p[each, gold] = 0.0
                total = gold_p + p.sum(1, keepdim=True).float()
                # From the likeliest token, whose probability is never too small for its logarithm.
                log_z = highest - (highest_p / total).log()
                nll += (log_z - gold_logits).sum(dtype=torch.float64)
                log_normalisers += log_z.sum(dtype=torch.float64)
                if d_states is None or d_weight is None:
                    continue
                # The gradient but for -other_mass everywhere, which is added after the loop.
                p[each, gold] = (gold_p - (label_mass - other_mass) * total).to(p.dtype)
                p[:, PAD] -= pad_mass - other_mass
                d_logits = p if p.dtype == logits.dtype else logits.copy_(p)
                torch.mm(d_logits, matrix, out=d_states[part])
                d_weight += d_logits.t() @ inputs[part]
                if d_bias is not None:
                    d_bias += p.sum(0, dtype=torch.float32)
        if other_mass and d_states is not None and d_weight is not None:
            d_states -= other_mass * weight_sum
            d_weight -= other_mass * input_sum
            if d_bias is not None:
                d_bias -= other_mass * len(inputs)
        if offset is not None:
            all_logits += len(inputs) * offset.sum(dtype=torch.float64)
        loss = (label_mass - other_mass) * nll
        loss += other_mass * (len(weight) * log_normalisers - all_logits)
        loss += (pad_mass - other_mass) * (log_normalisers - pad_logits)
        if wants_gradient:
            ctx.save_for_backward(d_states, d_weight, d_bias)
            ctx.dtypes = (states.dtype, weight.dtype)
        loss, nll = loss.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients, scaled by that of the loss."""
        return *_chain(ctx, d_loss), None, None, None


class SlicedDivergence(torch.autograd.Function):
    """Mean of KL(p1 || p2) and KL(p2 || p1), and its gradient, a slice of tokens at a time.

    Summed over the tokens; p1 and p2 are predicted from the first and second half of the states.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wants_gradient: bool
    ) -> Tensor:
        """Compute the loss and, where wanted, keep its gradients."""
        device = states.device.type
        inputs, matrix, offset = _in_autocast_dtype(states, weight, bias)
        halves = inputs.view(2, len(inputs) // 2, inputs.shape[1])  # [2, P, D]
        # Two passes of a slice's tokens, and some four tables of them at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (8 * len(weight)))
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        d_states = torch.empty_like(halves)
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        with torch.autocast(device, enabled=False):
            for first in range(0, halves.shape[1], rows):
                part = halves[:, first : first + rows]  # [2, R, D]
                log_p = F.linear(part, matrix, offset).log_softmax(-1, dtype=torch.float32)
                p = log_p.exp()  # [2, R, V]
                log_ratio = log_p - log_p.flip(0)
                divergences = (p * log_ratio).sum(-1, keepdim=True)  # [2, R, 1]
                total += 0.5 * divergences.sum(dtype=torch.float64)
                if d_weight is None:
                    continue
                # By the logits of one pass: of the divergence from it, and of the one to it.
                d_logits = p * (log_ratio - divergences) + (p - p.flip(0))
                d_logits = (0.5 * d_logits).to(matrix.dtype)
                d_states[:, first : first + rows] = d_logits @ matrix
                d_weight += d_logits.flatten(0, 1).t() @ part.flatten(0, 1)
                if d_bias is not None:
                    d_bias += d_logits.sum((0, 1), dtype=torch.float32)
        if wants_gradient:
            ctx.save_for_backward(d_states.flatten(0, 1), d_weight, d_bias)
            ctx.dtypes = (states.dtype, weight.dtype)
        return total.float()

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients, scaled by that of the loss."""
        return *_chain(ctx, d_loss), None


def _softmax_(logits: Tensor) -> Tensor:
    """Of each row, in its place; of fp16, in which small probabilities are zero, in float32."""
    p = logits.float() if logits.dtype == torch.float16 else logits
    return torch.softmax(p, dim=-1, out=p)


def _in_autocast_dtype(
    states: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """States, weight and bias in the precision in which autocast would multiply them."""
    device = states.device.type
    low = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if low else weight.dtype
    return states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _chain(ctx: Any, d_loss: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients that the forward pass saved, times that of what follows."""
    d_states, d_weight, d_bias = ctx.saved_tensors
    states_dtype, weight_dtype = ctx.dtypes
    return (
        (d_states * d_loss).to(states_dtype),
        (d_weight * d_loss).to(weight_dtype),
        None if d_bias is None else d_bias * d_loss,
    )

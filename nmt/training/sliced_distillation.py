"""Output layer and word-level distillation, with the teachers' output layers, in slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import PAD
from nmt.training.output_slices import SLICE_ELEMENTS, Gradients, Masses, Targets, in_autocast_dtype

MIN_PROBABILITY = torch.finfo(torch.float32).tiny
"""Least probability whose logarithm is taken; 0 adds nothing to an entropy."""


class Teaching(NamedTuple):
    """A teacher's predictions, as its decoder output and its output layer."""

    decoder_output: Tensor  # [P, D'], of the teacher's own width
    weight: Tensor  # [V, D']
    bias: Tensor | None  # [V]


class SlicedDistillation(torch.autograd.Function):
    """Cross-entropy with a mixture of labels and teachers' predictions, a slice at a time.

    The logits of a slice are computed once, those of the teachers beside those of the student.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        teacher_weight: float,
        teachings: Sequence[Teaching],
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            targets: of the P tokens, with masses whose sum is 1 - `teacher_weight`.
            teacher_weight: share of the teachers in the target distribution; of their
                cross-entropy, the part that is their own entropy is subtracted.
            teachings: at least one.
            wants_gradient: whether to compute the gradients.
        """
        labels, masses, token_weights = targets
        device = decoder_output.device.type
        inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        teachers = [in_autocast_dtype(*teaching) for teaching in teachings]
        # A slice holds some four tables [R, V] of float32 at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (4 * len(weight)))
        sums = torch.zeros(2, dtype=torch.float64, device=decoder_output.device)
        gradients = Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, len(inputs)), len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(labels), rows):
                part = slice(first, first + rows)
                gold = labels[part, None]
                target = _mean_prediction(teachers, part)
                logs = target.clamp_min(MIN_PROBABILITY).log_()
                target *= teacher_weight
                entropy = -logs.mul_(target).sum(1, keepdim=True)
                _add_label_(target, gold, masses)
                log_p = F.linear(inputs[part], matrix, offset).log_softmax(-1, dtype=torch.float32)
                cost = -(target * log_p).sum(1, keepdim=True) - entropy
                nll = -log_p.gather(1, gold)
                d_logits = log_p.exp_().sub_(target)
                if token_weights is not None:
                    cost *= token_weights[part, None]
                    d_logits *= token_weights[part, None]
                sums += torch.stack((cost, nll)).sum((1, 2), dtype=torch.float64)
                if gradients is not None:
                    gradients.add(part, d_logits, inputs, matrix, room[: len(gold)])
        if gradients is not None:
            gradients.save(ctx, decoder_output, weight)
        loss, nll = sums.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *Gradients.backward(ctx, d_loss), None, None, None, None


def _mean_prediction(
    teachers: Sequence[tuple[Tensor, Tensor, Tensor | None]], part: slice
) -> Tensor:
    """Return the mean of the teachers' probabilities of a slice of tokens: [R, V] float32."""
    predictions = (
        F.linear(outputs[part], matrix, offset).softmax(-1, dtype=torch.float32)
        for outputs, matrix, offset in teachers
    )
    mean = next(predictions)
    for prediction in predictions:
        mean += prediction
    return mean.div_(len(teachers))


def _add_label_(target: Tensor, gold: Tensor, masses: Masses) -> None:
    """Add the masses of labels [R, 1], of other tokens and of padding to a table [R, V]."""
    target += masses.other
    target[:, PAD] += masses.pad - masses.other
    label = torch.full_like(gold, masses.label - masses.other, dtype=target.dtype)
    target.scatter_add_(1, gold, label)

"""Losses, summed over target tokens: the trainer divides once, by all tokens of an update.

Label smoothing has more than one definition in use (see the classes below); they differ in how
the smoothing mass is spread, and their values differ by a constant or slightly more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nmt.data.format import PAD
from nmt.registry import Registry

SLICE_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Logits held in float32 at a time, by device (16 MiB, 256 MiB): the loss walks over the tokens in
slices, small enough for a CPU's caches, large enough to keep a GPU busy."""


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A divergence of the model's distribution from a target distribution around the label."""

    registry: ClassVar[Registry[Loss]]

    name: str = ""
    """Which loss."""

    @abstractmethod
    def masses(self, vocabulary: int) -> tuple[float, float, float]:
        """Target probability of the label, of every other token, and of padding."""

    def constant(self, vocabulary: int) -> float:
        """What is subtracted per token, in nats."""
        return 0.0

    def __call__(self, states: Tensor, output: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the negative log-likelihood, both summed over tokens, in nats.

        Args:
            states: [P, D], the decoder's states where a token is to be predicted.
            output: the model's output layer [V, D].
            labels: [P] int64, the tokens to predict; no padding.

        Returns:
            Two float32 scalars; only the first has a gradient.
        """
        vocabulary = output.weight.shape[0]
        masses = self.masses(vocabulary)
        loss, nll = _SlicedLoss.apply(  # type: ignore[no-untyped-call]
            states, output.weight, output.bias, labels, masses, torch.is_grad_enabled()
        )
        return loss - self.constant(vocabulary) * len(labels), nll


losses: Registry[Loss] = Registry("loss")
Loss.registry = losses


@losses.register("cross_entropy")
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Loss):
    """-log p(label)."""

    def masses(self, vocabulary: int) -> tuple[float, float, float]:
        """All on the label."""
        return 1.0, 0.0, 0.0


@losses.register("label_smoothed_cross_entropy")
@dataclass(frozen=True, kw_only=True)
class LabelSmoothedCrossEntropy(Loss):
    """Cross-entropy against a label that is smoothed over the vocabulary."""

    smoothing: float = 0.1
    """Probability taken from the label (epsilon_ls), to be spread over other tokens."""
    definition: Literal["tensor2tensor", "fairseq", "uniform", "annotated"] = "tensor2tensor"
    """"tensor2tensor" (the paper's): over the V-1 others, minus the constant entropy, so that a
    perfect model scores 0; "fairseq" (since 2021): the same without the constant; "uniform"
    (Szegedy et al. 2015, torch): over all V; "annotated" (The Annotated Transformer): over the
    V-2 that are neither label nor padding."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing lies in [0, 1), not {self.smoothing}")

    def masses(self, vocabulary: int) -> tuple[float, float, float]:
        """By the definition."""
        eps = self.smoothing
        if self.definition == "uniform":
            return 1 - eps + eps / vocabulary, eps / vocabulary, eps / vocabulary
        if self.definition == "annotated":
            return 1 - eps, eps / (vocabulary - 2), 0.0
        return 1 - eps, eps / (vocabulary - 1), eps / (vocabulary - 1)

    def constant(self, vocabulary: int) -> float:
        """The entropy of the smoothed label, for tensor2tensor's definition."""
        if self.definition != "tensor2tensor" or self.smoothing == 0.0:
            return 0.0
        label, other, _ = self.masses(vocabulary)
        return -(label * math.log(label) + (vocabulary - 1) * other * math.log(other))


class _SlicedLoss(torch.autograd.Function):
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
        label_mass, other_mass, pad_mass = masses
        device = states.device.type
        low = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if low else weight.dtype
        matrix, inputs = weight.to(dtype), states.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        rows = max(1, SLICE_ELEMENTS[device] // len(weight))
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        nll = torch.zeros_like(loss)
        d_states = torch.empty_like(inputs) if wants_gradient else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        d_bias = torch.zeros_like(loss.expand(len(weight))) if bias is not None else None
        with torch.autocast(device, enabled=False):
            for first in range(0, len(inputs), rows):
                part = slice(first, first + rows)
                gold = labels[part, None]
                logits = nn.functional.linear(inputs[part], matrix, offset)
                log_p = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
                log_gold = log_p.gather(1, gold).sum()
                nll -= log_gold
                loss -= (label_mass - other_mass) * log_gold
                if other_mass:
                    loss -= other_mass * log_p.sum()
                    loss -= (pad_mass - other_mass) * log_p[:, PAD].sum()
                if d_states is None or d_weight is None:
                    continue
                d_logits = log_p.exp_()
                if other_mass:
                    d_logits -= other_mass
                    d_logits[:, PAD] -= pad_mass - other_mass
                d_logits.scatter_add_(
                    1, gold, (other_mass - label_mass) * torch.ones_like(log_p[:, :1])
                )
                low_d_logits = d_logits.to(dtype)
                torch.mm(low_d_logits, matrix, out=d_states[part])
                d_weight += low_d_logits.t() @ inputs[part]
                if d_bias is not None:
                    d_bias += d_logits.sum(0)
        if wants_gradient:
            ctx.save_for_backward(d_states, d_weight, d_bias)
            ctx.dtypes = (states.dtype, weight.dtype)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_weight, d_bias = ctx.saved_tensors
        states_dtype, weight_dtype = ctx.dtypes
        return (
            (d_states * d_loss).to(states_dtype),
            (d_weight * d_loss).to(weight_dtype),
            None if d_bias is None else d_bias * d_loss,
            None,
            None,
            None,
        )

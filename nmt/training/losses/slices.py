"""Parts of losses that compute the output layer with the loss, a slice of tokens at a time.

Such a loss never holds the logits of a whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

SLICE_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Number of logits of a slice of tokens, by device; in float32 they take 32 MiB and 512 MiB.

Slices are large enough to keep the device busy. Logits have the dtype of the matrix products.
"""


MIXED_SUMS = hasattr(torch.ops.aten.addmm, "dtype_out")
"""Whether this torch adds a product in half precision to a float32 matrix: from 2.8, on a GPU."""


class Masses(NamedTuple):
    """Probabilities of a target distribution, whose sum over the vocabulary is usually 1."""

    label: float
    """Of the token to predict."""
    other: float
    """Of every token that is neither label nor padding."""
    pad: float
    """Of padding."""

    def scaled(self, factor: float) -> Masses:
        """Return the masses times a factor."""
        return Masses(*(factor * mass for mass in self))


class Targets(NamedTuple):
    """Labels of P tokens, and what counts of them in the loss."""

    labels: Tensor
    """[P] int64."""
    masses: Masses
    """Target distribution of each token."""
    weights: Tensor | None
    """[P] float32, factors of the tokens' losses, but not of their likelihoods; None for 1."""


def in_autocast_dtype(
    decoder_output: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return decoder output, weight and bias in the dtype that autocast would use."""
    device = decoder_output.device.type
    low = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if low else weight.dtype
    return decoder_output.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


@dataclass
class Gradients:
    """Gradients of a sliced loss with respect to decoder output, weight and bias, to be filled."""

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def zeros(cls, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Gradients:
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
        if d_logits.is_cuda and d_logits.dtype != torch.float32 and MIXED_SUMS:
            # Sums of many slices in bf16 would lose small gradients.
            torch.addmm(
                self.weight, d_logits.t(), inputs[part], out_dtype=torch.float32, out=self.weight
            )
        else:
            self.weight += d_logits.t() @ inputs[part]

    def save(self, ctx: Any, decoder_output: Tensor, weight: Tensor) -> None:
        """Keep the gradients for the backward pass, with the dtypes of its results."""
        ctx.save_for_backward(self.inputs, self.weight, self.bias)
        ctx.dtypes = (decoder_output.dtype, weight.dtype)

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients that the forward pass saved, times the gradient of the loss."""
        d_inputs, d_weight, d_bias = ctx.saved_tensors
        states_dtype, weight_dtype = ctx.dtypes
        return (
            # The loss is a scalar, so its gradient is one factor of what the forward pass has
            # computed.
            (d_inputs * d_loss).to(states_dtype),
            (d_weight * d_loss).to(weight_dtype),
            None if d_bias is None else d_bias * d_loss,
        )

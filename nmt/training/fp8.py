"""Training in fp8: products of feed-forward layers, and the logits of the output layer.

Inputs and weights are rounded to e4m3 and gradients to e5m2 (Micikevicius et al. 2022, *FP8 Formats
for Deep Learning*). Each tensor has one scale, from its largest values in the last updates, so that
no pass over the tensor precedes its rounding. Gradients of weights are products in bf16: in fp8
they would need transposed copies, which take longer than the products save.

A CPU computes the same numbers in float32; it is for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models import Model
from nmt.models.kernels.gpu import compute_dtype
from nmt.models.layers.feed_forward import FeedForward, GatedFeedForward
from nmt.runtime.own_kernels import has_own_kernels

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
"""Formats of inputs and weights, and of gradients: three bits of mantissa, and two."""

HISTORY = 16
"""Updates whose largest values make a scale."""

GRAIN = 16
"""Widths of the matrices are multiples of this number, as the tensor cores need."""


class Fp8State:
    """Largest absolute values of all tensors that are rounded, over the last updates."""

    def __init__(self, count: int, device: torch.device) -> None:
        """Begin without any values.

        Args:
            count: number of tensors.
            device: of the tensors.
        """
        self.history = torch.zeros(count, HISTORY, device=device)
        self.largest = torch.zeros(count, device=device)
        """Of this update so far."""
        self.expected = torch.zeros(count, device=device)
        """Of the updates before; always at the same address, which a CUDA graph reads."""
        self.is_new = True
        """Whether there is no update before, so that a tensor is scaled by its own values."""

    def begin(self) -> None:
        """Begin an update; drop what batches of a trial left."""
        self.largest.zero_()

    def end(self) -> None:
        """End an update: its largest values join the history."""
        # An update that was not finite is skipped, and so are its values.
        largest = self.largest.nan_to_num(posinf=0.0)
        self.history.copy_(torch.cat((self.history[:, 1:], largest[:, None]), 1))
        self._expect()

    def values(self) -> list[list[float]]:
        """Return the history, for a checkpoint."""
        values: list[list[float]] = self.history.tolist()
        return values

    def restore(self, values: list[list[float]]) -> None:
        """Restore the history of a checkpoint of the same model."""
        if len(values) == len(self.history):
            self.history.copy_(torch.tensor(values))
            self._expect()

    def _expect(self) -> None:
        torch.amax(self.history, 1, out=self.expected)
        self.is_new = False


class Rounded(NamedTuple):
    """A tensor in fp8."""

    values: Tensor
    inverse: Tensor
    """Factor [] float32 that undoes the scale."""


class Slot(NamedTuple):
    """The place of one tensor in the state."""

    state: Fp8State
    number: int

    def round(self, x: Tensor, dtype: torch.dtype) -> Rounded:
        """Round a contiguous tensor to fp8, and note its largest absolute value."""
        state, part = self.state, slice(self.number, self.number + 1)
        largest = state.largest[part]
        expected = x.abs().amax().float()[None] if state.is_new else state.expected[part]
        limit = torch.finfo(dtype).max
        # A tensor of zeros, or of numbers too small to divide by, keeps its scale.
        scale = torch.where(expected > 1e-30, limit / expected, 1.0)
        if x.is_cuda and has_own_kernels():
            from nmt.models.kernels.sublayers import round_to_fp8

            return Rounded(round_to_fp8(x, scale, largest, dtype), 1.0 / scale[0])
        torch.maximum(largest, x.detach().abs().amax().float(), out=largest)
        # Versions of torch differ in what they cast to NaN: here it is infinity alone.
        scaled = (x.float() * scale).clamp(-limit, limit).masked_fill_(x.isinf(), float("nan"))
        return Rounded(scaled.to(dtype), 1.0 / scale[0])


class Slots(NamedTuple):
    """The tensors of a linear layer."""

    inputs: Slot
    weight: Slot
    gradient: Slot


def product(a: Rounded, b: Rounded, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """Return the product of [M, K] and the transpose of [N, K], plus a bias [N]."""
    if a.values.is_cuda:
        multiplied: Tensor = torch._scaled_mm(
            *(a.values, b.values.t()),
            scale_a=a.inverse,
            scale_b=b.inverse,
            bias=bias,
            out_dtype=dtype,
            # Sums of less than float32 are exact enough for activations, not for gradients.
            use_fast_accum=a.values.dtype == FORWARD,
        )
        return multiplied
    with torch.autocast("cpu", enabled=False):
        exact = (a.values.float() @ b.values.float().t()) * (a.inverse * b.inverse)
        return (exact if bias is None else exact + bias.float()).to(dtype)


class Fp8Product(torch.autograd.Function):
    """A linear layer in fp8, and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slots: Slots) -> Tensor:
        """Return x W + b [P, F] in the dtype of `x` [P, D]; the weight [F, D] is float32."""
        inputs, matrix = slots.inputs.round(x, FORWARD), slots.weight.round(weight, FORWARD)
        ctx.save_for_backward(x, *matrix)
        ctx.slots, ctx.dtypes = slots, (weight.dtype, None if bias is None else bias.dtype)
        return product(inputs, matrix, x.dtype, None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs, weight and bias."""
        x, values, inverse = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        d_output = d_output.contiguous()
        gradient = ctx.slots.gradient.round(d_output, BACKWARD)
        transposed = Rounded(values.t().contiguous(), inverse)
        d_bias = None if bias_dtype is None else d_output.sum(0, dtype=bias_dtype)
        d_weight = (d_output.t() @ x).to(weight_dtype)
        return product(gradient, transposed, x.dtype), d_weight, d_bias, None


class Fp8Linear(nn.Linear):
    """A linear layer that computes in fp8 in training; it has the weights of ``nn.Linear``."""

    slots: Slots

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        if not self.training or not x.numel():
            return super().forward(x)
        rows = x.reshape(-1, x.shape[-1]).to(compute_dtype(x.device))
        output: Tensor = Fp8Product.apply(  # type: ignore[no-untyped-call]
            *(rows.contiguous(), self.weight, self.bias, self.slots)
        )
        return output.view(*x.shape[:-1], -1)


class Fp8Output(nn.Linear):
    """An output layer whose logits the loss computes in fp8 (:func:`logits_in_fp8`)."""

    slots: Slots


def use_fp8(model: Model, device: torch.device) -> Fp8State:
    """Let training compute feed-forward layers and logits in fp8; return the state of the scales.

    Layers whose widths are no multiples of `GRAIN` stay as they are, and so do layers of a kind of
    their own, such as those with parts of an adaptation.
    """
    layers = list(_layers(model))
    state = Fp8State(3 * len(layers), device)
    for number, layer in enumerate(layers):
        # A class instead of a wrapper keeps the names of the weights, and so the checkpoints.
        layer.__class__ = Fp8Output if layer is model.output else Fp8Linear
        assert isinstance(layer, Fp8Output | Fp8Linear)
        layer.slots = Slots(*(Slot(state, 3 * number + part) for part in range(3)))
    return state


def _layers(model: Model) -> Iterator[nn.Linear]:
    for module in model.modules():
        if isinstance(module, FeedForward | GatedFeedForward):
            for layer in (module.inner, module.outer):
                is_fit = layer.in_features % GRAIN == 0 == layer.out_features % GRAIN
                if type(layer) is nn.Linear and is_fit:
                    yield layer
    if type(model.output) is nn.Linear and model.output.in_features % GRAIN == 0:
        yield model.output


class Fp8Logits:
    """The product of an output layer in fp8, for slices of tokens."""

    def __init__(self, inputs: Tensor, weight: Tensor, slots: Slots) -> None:
        """Round the inputs [P, D] of all slices, and the weight [V, D]."""
        self.inputs = slots.inputs.round(inputs.contiguous(), FORWARD)
        values, inverse = slots.weight.round(weight, FORWARD)
        # Rows of zeros make the vocabulary a multiple; their logits are cut off.
        padded = F.pad(values.view(torch.int8), (0, 0, 0, -len(values) % GRAIN))
        self.weight = Rounded(padded.view(FORWARD), inverse)
        self.vocabulary = len(weight)

    def of(self, part: slice, dtype: torch.dtype) -> Tensor:
        """Return the logits [R, V] of a slice of tokens; rows may lie further apart."""
        values, inverse = self.inputs
        return product(Rounded(values[part], inverse), self.weight, dtype)[:, : self.vocabulary]

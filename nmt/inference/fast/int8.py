"""Linear layers with 8-bit weights, whose inputs are quantised by the batch or by a calibration."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nmt.runs.calibration import Range

WIDE, MANY = 4096, 100
"""Outputs and rows from which oneDNN's 8-bit product is faster than fbgemm's, on AVX-512 VNNI: a
third faster at 256 rows; with four rows it takes twice the time."""


FIXED = ("fbgemm", "onednn")
"""Engines of products with a fixed quantisation of the inputs."""


class Int8Linear(nn.Module):
    """A linear layer with 8-bit integer weights, by torch's own kernel.

    The inputs of all rows are quantised by the smallest and the largest of them.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        quantised = _quantised(linear)
        self._for_few = self._for_many = _packed_int8(quantised, linear.bias)
        # Only wide layers gain; packing every layer twice would double the memory.
        if linear.out_features >= WIDE:
            with _engine("onednn"):
                self._for_many = _packed_int8(quantised, linear.bias)
        self._many = MANY * linear.in_features
        # `_op` skips the argument checks that torch makes in Python.
        self._multiply: Any = torch.ops.quantized.linear_dynamic._op

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] to [..., out], both float32."""
        packed, in_7_bits = self._for_few if x.numel() < self._many else self._for_many
        product: Tensor = self._multiply(x, packed, in_7_bits)
        return product


@dataclass(frozen=True)
class Quantisation:
    """A mapping of numbers x to 8-bit integers, x / scale + zero."""

    scale: float
    zero: int

    @classmethod
    def of(cls, limits: Range) -> Quantisation:
        """Return the mapping of a range of numbers, and 0, to all integers of 8 bits or of 7."""
        # Zero must be exact: padding and ReLU produce it.
        low, high = min(limits[0], 0.0), max(limits[1], 0.0)
        # Without VNNI sums of two products saturate at 16 bits, so inputs have a bit less.
        levels = 127 if any(map(_engine_overflows, FIXED)) else 255
        # An input that is always 0 has no range.
        scale = max((high - low) / levels, 1e-10)
        return cls(scale, round(-low / scale))


class FewRowsLinear(nn.Module):
    """A linear layer with 8-bit weights and a fixed quantisation of the inputs, by fbgemm.

    The product of a row does not depend on other rows. Fast from a single row on.
    """

    def __init__(self, linear: nn.Linear, limits: Range, relu: bool = False) -> None:
        """Pack the weights.

        Args:
            linear: layer to convert.
            limits: smallest and largest input.
            relu: whether ReLU follows.
        """
        super().__init__()
        quantisation = Quantisation.of(limits)
        self._scale, self._zero = quantisation.scale, quantisation.zero
        with _engine("fbgemm"):
            self._packed, _ = _packed_int8(_quantised(linear), linear.bias)
        ops = torch.ops.quantized
        self._multiply: Any = (
            ops.linear_with_input_q_dq_qweight_dq_relu_output_fp32._op
            # ReLU within the product saves a pass over the activations.
            if relu
            else ops.linear_with_input_q_dq_qweight_dq_output_fp32._op
        )

    @classmethod
    def into(cls, linear: nn.Linear, limits: Range, following: Range) -> FewRowsLinear:
        """Return a layer with ReLU, which another layer with inputs `following` follows."""
        return cls(linear, limits, relu=True)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, and ReLU if it was asked for: [..., in] to [..., out], both float32."""
        product: Tensor = self._multiply(x, self._scale, self._zero, self._packed)
        return product


class ManyRowsLinear(nn.Module):
    """A linear layer like :class:`FewRowsLinear`, by oneDNN; the last bits may differ.

    Faster by a fifth to a third for hundreds of rows.
    """

    def __init__(
        self,
        linear: nn.Linear,
        limits: Range,
        relu: bool = False,
        following: Quantisation | None = None,
    ) -> None:
        """Pack the weights.

        Args:
            linear: layer to convert.
            limits: smallest and largest input.
            relu: whether ReLU follows.
            following: quantisation of the outputs; None for float32.
        """
        super().__init__()
        quantisation, weight = Quantisation.of(limits), _quantised(linear)
        self._scale, self._zero = quantisation.scale, quantisation.zero
        self._packed: Tensor = torch.ops.onednn.qlinear_prepack(weight.int_repr(), None)
        self._weight_scales = weight.q_per_channel_scales().float()
        self._weight_zeros = weight.q_per_channel_zero_points()
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._out_dtype = torch.uint8 if following else torch.float32
        self._following = following or Quantisation(1.0, 0)
        self._after = "relu" if relu else "none"

    @classmethod
    def into(cls, linear: nn.Linear, limits: Range, following: Range) -> ManyRowsLinear:
        """Return a layer with ReLU, whose outputs are quantised for the layer that follows."""
        return cls(linear, limits, relu=True, following=Quantisation.of(following))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to rows [..., in] of float32 or of quantised inputs."""
        rows = x.reshape(-1, x.shape[-1])
        # The inner of two layers hands on integers.
        if rows.dtype != torch.uint8:
            quantised = torch.quantize_per_tensor(rows, self._scale, self._zero, torch.quint8)
            rows = quantised.int_repr()
        product: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            rows,
            self._scale,
            self._zero,
            self._packed,
            self._weight_scales,
            self._weight_zeros,
            self._bias,
            self._following.scale,
            self._following.zero,
            self._out_dtype,
            self._after,
            [],
            "",
        )
        return product.view(*x.shape[:-1], product.shape[-1])


def has_fixed_kernels() -> bool:
    """Whether this torch has products with a fixed quantisation of the inputs."""
    return set(FIXED) <= set(torch.backends.quantized.supported_engines)


def _engine_overflows(name: str) -> bool:
    with _engine(name):
        return _overflows(name)


@torch.no_grad()
def _quantised(linear: nn.Linear) -> Tensor:
    """Return the weights of a layer in 8 bits, with a scale for each output."""
    weight = linear.weight.detach()
    # Symmetric to 0, so that the weights need no zero points.
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-10).double()
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with warnings.catch_warnings():
        # torch has deprecated this function; the kernels have no other interface so far.
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)


def _packed_int8(weight: Tensor, bias: Tensor | None) -> tuple[Any, bool]:
    """Return weights packed for torch's quantised engine, and whether inputs have 7 bits."""
    packed = torch.ops.quantized.linear_prepack(weight, None if bias is None else bias.detach())
    return packed, _overflows(torch.backends.quantized.engine)


@cache
def _overflows(engine: str) -> bool:
    """Whether the engine's sums of products of 8 bits overflow, as they do without VNNI."""
    layer = nn.Linear(64, 2, bias=False)
    nn.init.constant_(layer.weight, 127.0)
    packed = torch.ops.quantized.linear_prepack(_quantised(layer), None)
    # Tried out instead of read from the processor: engines choose their kernels themselves.
    product = torch.ops.quantized.linear_dynamic(torch.full((1, 64), 127.0), packed, False)
    return bool((product < 0.99 * 64 * 127 * 127).any())


@contextmanager
def _engine(name: str) -> Iterator[None]:
    """Pack weights for a quantised engine if this torch has it, else for the usual one."""
    quantized = torch.backends.quantized
    usual = quantized.engine
    if name in quantized.supported_engines:
        quantized.engine = name
    try:
        yield
    finally:
        quantized.engine = usual

"""Linear layers for inference: packed weights and 8-bit integers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nmt.runtime.precision import (
    LOW,
    InferencePrecision,
    check_precision,
    onednn_computes_in,
    pick_precision,
)


def convert(model: nn.Module, precision: InferencePrecision, device: torch.device) -> None:
    """Convert a model for inference, once and in place.

    Weights of linear layers are stored in the layout of the fastest product, and calls of modules
    bypass torch's hooks. For bf16 and fp16, weights are converted once, which :func:`autocast`
    would repeat for every batch. int8 is torch's dynamic quantisation: weights per output row,
    inputs per tensor, products in integers; everything else stays float32. The model cannot be
    trained afterwards: no weight has gradients.

    Raises:
        NmtError: int8 on another device than a CPU, or on a CPU without int8 kernels.
    """
    precision = pick_precision(precision, device)
    check_precision(precision, device)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:  # a subclass may do more than multiply
                setattr(module, name, _converted(child, precision, device))
            elif isinstance(child, nn.RNNBase) and precision in LOW:
                child.to(LOW[precision])
    model.requires_grad_(False)
    _call_directly(model)


def _call_directly(model: nn.Module) -> None:
    """Remove the overhead of calls of modules, such as hooks, and of attribute lookup.

    For one sentence on a CPU this overhead takes as long as the computation.
    """
    for module in model.modules():
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"__call__": kind.forward})
        vars(module).update(module._modules, **module._parameters)


def some_outputs(
    linear: nn.Linear, outputs: Tensor, precision: InferencePrecision, device: torch.device
) -> nn.Module:
    """Return a linear layer with only some outputs of another layer, converted for inference.

    For int8 the new layer computes as for "auto": packing 8-bit weights takes longer than the
    products of a sentence or two.

    Args:
        linear: layer that was not converted.
        outputs: [n] int64, indices of the outputs.
        precision: precision of the computation.
        device: device of the layer.
    """
    subset = nn.Linear(linear.in_features, len(outputs), linear.bias is not None, device="meta")
    subset.weight = _constant(linear.weight.detach()[outputs])
    if linear.bias is not None:
        subset.bias = _constant(linear.bias.detach()[outputs])
    fast = "auto" if precision == "int8" else precision
    return _converted(subset, pick_precision(fast, device), device)


def _converted(linear: nn.Linear, precision: InferencePrecision, device: torch.device) -> nn.Module:
    """Return the fastest replacement of a linear layer, or the layer itself."""
    if precision == "int8":
        return Int8Linear(linear)
    dtype = LOW.get(precision, torch.float32)
    if device.type == "cpu" and dtype != torch.float16 and onednn_computes_in(dtype):
        return PackedLinear(linear, dtype)
    if dtype != torch.float32:
        linear.weight = _constant(linear.weight.to(dtype))
        linear.bias = None if linear.bias is None else _constant(linear.bias.to(dtype))
    return linear


WIDE, MANY = 4096, 100
"""Outputs and rows from which oneDNN's 8-bit product is faster than fbgemm's, on AVX-512 VNNI: a
third faster at 256 rows; with four rows it takes twice the time."""


class PackedLinear(nn.Module):
    """A linear layer with weights packed for oneDNN's product.

    On a CPU this is up to four times as fast for a few rows, and a tenth to a third faster for
    many. The output of a row does not depend on the number of rows.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach().to(dtype)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] to [..., out] of the layer's dtype."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x.to(self.dtype), self._packed, self._bias, "none", [], ""
        )
        return product


class Int8Linear(nn.Module):
    """A linear layer with 8-bit integer weights, by torch's own kernel."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-10).double()
        zeros = torch.zeros_like(scales, dtype=torch.int64)
        bias = None if linear.bias is None else linear.bias.detach()
        with warnings.catch_warnings():
            # torch has deprecated this function; the kernels have no other interface so far.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._for_few = self._for_many = _packed_int8(quantised, bias)
            if linear.out_features >= WIDE:
                with _onednn():
                    self._for_many = _packed_int8(quantised, bias)
        self._many = MANY * linear.in_features
        # `_op` skips the argument checks that torch makes in Python.
        self._multiply: Any = torch.ops.quantized.linear_dynamic._op

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] to [..., out], both float32."""
        packed, in_7_bits = self._for_few if x.numel() < self._many else self._for_many
        product: Tensor = self._multiply(x, packed, in_7_bits)
        return product


def _packed_int8(weight: Tensor, bias: Tensor | None) -> tuple[Any, bool]:
    """Return weights packed for torch's quantised engine, and whether inputs have 7 bits."""
    packed = torch.ops.quantized.linear_prepack(weight, bias)
    return packed, _overflows(torch.backends.quantized.engine)


@cache
def _overflows(engine: str) -> bool:
    """Whether the engine's sums of products of 8 bits overflow, as they do without VNNI."""
    ones, zeros = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    weight = torch.quantize_per_channel(torch.full((2, 64), 127.0), ones, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    product = torch.ops.quantized.linear_dynamic(torch.full((1, 64), 127.0), packed, False)
    return bool((product < 0.99 * 64 * 127 * 127).any())


@contextmanager
def _onednn() -> Iterator[None]:
    """Pack weights for oneDNN if this torch has oneDNN, else for the usual engine."""
    quantized = torch.backends.quantized
    usual = quantized.engine
    if "onednn" in quantized.supported_engines:
        quantized.engine = "onednn"
    try:
        yield
    finally:
        quantized.engine = usual


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)

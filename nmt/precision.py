"""The number format that matrix products are computed in; weights in training are float32."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from nmt.errors import NmtError

Precision = Literal["auto", "fp32", "bf16", "fp16"]
InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""Without gradients, linear layers may also be quantised (CPU)."""

P = TypeVar("P", Precision, InferencePrecision)

LOW: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions below that of the weights."""


def pick_precision(precision: P, device: torch.device) -> P:
    """The precision itself, or for "auto" bf16 where the device multiplies it fast, else fp32.

    On GPUs that have fast products in fp16 only (compute capability 7.x), that.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return "bf16" if major >= 8 else "fp16" if major == 7 else "fp32"
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    fast = any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
    return "bf16" if fast else "fp32"


def autocast(precision: InferencePrecision, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a model computes with that precision."""
    dtype = LOW.get(pick_precision(precision, device))
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def convert(model: nn.Module, precision: InferencePrecision, device: torch.device) -> None:
    """Makes a model ready for inference, once and in place.

    Weights of linear layers are kept as their products want them, and modules are called directly.

    bf16 and fp16 are what :func:`autocast` would make of them anew for every batch. int8 is torch's
    dynamic quantisation: weights by output row, inputs by the whole tensor, products in integers;
    all else stays float32. The model cannot be trained afterwards: no weight has gradients.

    Raises:
        NmtError: int8 on another device than a CPU, or without kernels for it.
    """
    precision = pick_precision(precision, device)
    if precision == "int8":
        if device.type != "cpu":
            raise NmtError(f"precision int8 is for CPUs; use bf16 on {device.type}")
        if torch.backends.quantized.engine == "none":
            raise NmtError("precision int8: this torch has no quantised kernels; use bf16 or fp32")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:  # a subclass may do more than multiply
                setattr(module, name, _converted(child, precision, device))
            elif isinstance(child, nn.RNNBase) and precision in LOW:
                child.to(LOW[precision])
    model.requires_grad_(False)
    _call_directly(model)


def _call_directly(model: nn.Module) -> None:
    """Takes away what modules do around a call, such as hooks, and to find their parts.

    For one sentence on a CPU that takes as long as the work.
    """
    for module in model.modules():
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"__call__": kind.forward})
        vars(module).update(module._modules, **module._parameters)


def some_outputs(
    linear: nn.Linear, outputs: Tensor, precision: InferencePrecision, device: torch.device
) -> nn.Module:
    """A linear layer of some outputs [n] int64 of one that was not converted, ready for use.

    Where that is int8, it multiplies as "auto" does: to pack weights of 8 bits takes longer than
    the products of a sentence or two.
    """
    few = nn.Linear(linear.in_features, len(outputs), linear.bias is not None, device="meta")
    few.weight = _constant(linear.weight.detach()[outputs])
    if linear.bias is not None:
        few.bias = _constant(linear.bias.detach()[outputs])
    fast = "auto" if precision == "int8" else precision
    return _converted(few, pick_precision(fast, device), device)


def _converted(linear: nn.Linear, precision: InferencePrecision, device: torch.device) -> nn.Module:
    """The layer that takes the place of a linear one; itself where there is nothing better."""
    if precision == "int8":
        return Int8Linear(linear)
    dtype = LOW.get(precision, torch.float32)
    if device.type == "cpu" and _is_packable(dtype):
        return PackedLinear(linear, dtype)
    if dtype != torch.float32:
        linear.weight = _constant(linear.weight.to(dtype))
        linear.bias = None if linear.bias is None else _constant(linear.bias.to(dtype))
    return linear


def _is_packable(dtype: torch.dtype) -> bool:
    """Whether this torch and processor have oneDNN's products of packed weights."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    is_fast_bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or is_fast_bf16


WIDE, MANY = 4096, 100
"""Outputs and rows from which oneDNN's 8-bit product is faster than fbgemm's, on AVX-512 VNNI: a
third at 256 rows; of four it takes twice the time."""


class PackedLinear(nn.Module):
    """A linear layer whose weights lie in the order in which oneDNN's product reads them.

    On a CPU that is up to four times as fast for a few rows, and a tenth to a third faster for
    many; and what a row gives does not depend on how many others there are.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach().to(dtype)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] of the layer's type."""
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
            # torch has announced the end of this; the kernels have no other way in so far.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed: Any = torch.ops.quantized.linear_prepack(quantised, bias)
            self._packed_for_many = self._packed
            if linear.out_features >= WIDE:
                with _onednn():
                    self._packed_for_many = torch.ops.quantized.linear_prepack(quantised, bias)
        self._many = MANY * linear.in_features
        # On CPUs without VNNI pairs of products of 8 bits overflow.
        self._in_7_bits = not getattr(torch.cpu, "_is_vnni_supported", lambda: False)()
        # Called without the checks of its arguments that torch makes in Python.
        self._multiply: Any = torch.ops.quantized.linear_dynamic._op

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], both float32."""
        packed = self._packed if x.numel() < self._many else self._packed_for_many
        product: Tensor = self._multiply(x, packed, self._in_7_bits)
        return product


@contextmanager
def _onednn() -> Iterator[None]:
    """Packs weights for oneDNN, where this torch has it, and else as usual."""
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

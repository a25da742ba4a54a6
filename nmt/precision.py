"""The number format that matrix products are computed in; weights in training are float32."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
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
    """Keeps the weights of linear layers as their products want them, once and in place.

    bf16 and fp16 are what :func:`autocast` would make of them anew for every batch. int8 is torch's
    dynamic quantisation: weights by output row, inputs by the whole tensor, products in integers;
    all else stays float32. The model cannot be trained afterwards.

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
            if type(child) is not nn.Linear:  # a subclass may do more than multiply
                continue
            if precision == "int8":
                setattr(module, name, Int8Linear(child))
            elif (dtype := LOW.get(precision)) is not None:
                child.weight = _constant(child.weight.to(dtype))
                child.bias = None if child.bias is None else _constant(child.bias.to(dtype))


class Int8Linear(nn.Module):
    """A linear layer with 8-bit integer weights, by torch's own kernel."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-10).double()
        zeros = torch.zeros_like(scales, dtype=torch.int64)
        with warnings.catch_warnings():
            # torch has announced the end of this; the kernels have no other way in so far.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach()
        self._packed: Any = torch.ops.quantized.linear_prepack(quantised, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], both float32."""
        # Inputs get 7 bits: pairs of products of 8 overflow on CPUs without VNNI.
        product: Tensor = torch.ops.quantized.linear_dynamic(x, self._packed, True)
        return product


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)

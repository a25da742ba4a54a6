"""The number format that matrix products are computed in; weights are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]

LOW: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions below that of the weights."""


def pick_precision(precision: Precision, device: torch.device) -> Precision:
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


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a model computes with that precision."""
    dtype = LOW.get(pick_precision(precision, device))
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)

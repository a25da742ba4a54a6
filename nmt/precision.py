"""The number format that matrix products are computed in; weights are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16"]


def pick_precision(precision: Precision, device: torch.device) -> Precision:
    """The precision itself, or for "auto" bf16 where the device multiplies it fast, else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    fast = any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
    return "bf16" if fast else "fp32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a model computes with that precision."""
    if pick_precision(precision, device) == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()

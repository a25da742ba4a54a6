"""Number formats of matrix products; weights in training are float32."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from nmt.errors import NmtError
from nmt.lazy import torch

Precision = Literal["auto", "fp32", "bf16", "fp16", "fp8"]
"""Precisions of training: fp8 is bf16 with some products in fp8 (:mod:`nmt.training.fp8`)."""

InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""Precisions of inference: CTranslate2 also quantises linear layers to int8."""

AnyPrecision = Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8"]
"""Precisions of training or inference."""

P = TypeVar("P", Precision, InferencePrecision, AnyPrecision)

LOW = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}
"""Precisions with tensors of 16 bits, and torch's names of their dtypes."""


def low_dtype(precision: str) -> torch.dtype | None:
    """Return the dtype of tensors of 16 bits in a precision, None without such tensors."""
    return getattr(torch, LOW[precision]) if precision in LOW else None


def pick_precision(precision: P, device: torch.device) -> P:
    """Return the precision itself, or for "auto" the fastest of fp32, bf16 and fp16 on the device.

    On a CPU with fast instructions for bf16, that is bf16. On a GPU it is bf16 from compute
    capability 8.0 on, and fp16 at 7.x. On any other device it is fp32.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        # Ampere has bf16; Volta and Turing have tensor cores for fp16 alone.
        return "bf16" if major >= 8 else "fp16" if major == 7 else "fp32"
    return "bf16" if _is_fast_on_cpu("bf16") else "fp32"


def precision_of_inference(precision: Precision) -> InferencePrecision:
    """Return the precision in which a model of a training is validated."""
    return "bf16" if precision == "fp8" else precision


def check_precision(precision: AnyPrecision, kind: str) -> str | None:
    """Return a warning if torch computes slower in a precision than in fp32 on a kind of device.

    Needs no model, so a command can warn before it loads one.

    Raises:
        NmtError: the precision is int8, or the device cannot compute in fp8.
    """
    if precision == "int8":
        raise NmtError(
            "precision int8 is for CTranslate2; use the engine ctranslate2, or precision auto or "
            "fp32"
        )
    if precision == "fp8" and kind == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        raise NmtError("precision fp8 needs compute capability 8.9; use bf16")
    is_slow = kind == "cpu" and precision in LOW
    if not is_slow or (precision != "fp8" and _is_fast_on_cpu(precision)):
        return None
    return f"{precision} is slower than fp32 on this processor; use precision auto or fp32"


def _is_fast_on_cpu(precision: str) -> bool:
    """Return whether the processor multiplies faster in a precision of 16 bits than in fp32.

    Nothing is timed, so that a training resumes in the same precision. Without AMX, products in
    bf16 took twice the time of fp32 on a processor of Intel (docs/results/speed.md).
    """
    probes = {"bf16": ["_is_amx_tile_supported"], "fp16": ["_is_amx_fp16_supported"]}[precision]
    if precision == "bf16" and not _is_intel():
        probes.append("_is_avx512_bf16_supported")
    # Not every version of torch has all these probes.
    has_instructions = any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
    return has_instructions and onednn_computes_in(low_dtype(precision))


@cache
def _is_intel() -> bool:
    """Return whether Linux or Windows says that Intel made the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = platform.processor()
    return "GenuineIntel" in text


def onednn_computes_in(dtype: torch.dtype | None) -> bool:
    """Return whether this torch has oneDNN with kernels of a dtype for this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


@contextmanager
def autocast(precision: AnyPrecision, device: torch.device) -> Iterator[None]:
    """Let a model compute in a precision within the context.

    On a CPU for which oneDNN has no kernels of the dtype, turn oneDNN off: torch would use oneDNN
    for LSTMs anyway, and fail.
    """
    dtype = low_dtype(pick_precision(precision, device))
    if dtype is None:
        yield
        return
    without_onednn = device.type == "cpu" and not onednn_computes_in(dtype)
    with (
        torch.autocast(device.type, dtype=dtype),
        _onednn_off() if without_onednn else nullcontext(),
    ):
        yield


@contextmanager
def _onednn_off() -> Iterator[None]:
    usual = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = usual

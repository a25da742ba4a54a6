"""A trivial Triton kernel; importing the module needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _fill(x):
    """Write a number, to show whether kernels can be compiled and run."""
    tl.store(x, 1.0)


def try_triton() -> None:
    """Compile and run a kernel on the current GPU; raises whatever Triton raises."""
    _fill[(1,)](torch.empty(1, device="cuda"))

"""Dropout (Srivastava et al. 2014) whose random numbers are cheap on a CPU.

``torch.nn.functional.dropout`` draws one Bernoulli number per element, which on a CPU is the
largest cost of training outside matrix products. Here one 64-bit draw decides eight elements.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """Zero each element with probability `rate` in training, and scale up the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with some elements zeroed; same shape and dtype."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling():  # compiled: own draws
            return x * keep_mask(x, self.rate)
        return F.dropout(x, self.rate)


@torch.no_grad()
def keep_mask(x: Tensor, rate: float) -> Tensor:
    """Return 0 with probability `rate`, else 1 / (1 - rate); shape, dtype and device of `x`."""
    if x.device.type != "cpu":
        return F.dropout(torch.ones_like(x), rate)
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
    eighths = words.random_(-(1 << 63), None).view(torch.int8)[: x.numel()]
    # If the rate lies between two of the 256 levels, choose one at random for the whole mask.
    level = math.floor(rate * 256 + torch.rand(()).item())
    if level == 256:
        return torch.zeros_like(x)
    kept = torch.empty_like(x)  # converting a bool takes five times as long
    torch.ge(eighths.view(x.shape), level - 128, out=kept)
    return kept.mul_(1.0 / (1.0 - rate))

"""Dropout (Srivastava et al. 2014) whose random numbers are cheap on a CPU.

``torch.nn.functional.dropout`` draws one Bernoulli number per element, which on a CPU is the
largest cost of training outside matrix products. Here one 64-bit draw decides four elements.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` while training and scales up the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """The tensor, some of its elements zeroed; same shape and dtype."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type == "cpu":
            return x * _keep_mask(x, self.rate)
        return F.dropout(x, self.rate)


@torch.no_grad()
def _keep_mask(x: Tensor, rate: float) -> Tensor:
    """Zero with probability `rate` (to 1/65536), else 1 / (1 - rate); shape and dtype of `x`."""
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    quarters = words.random_(-(1 << 63), None).view(torch.int16)[: x.numel()]
    kept = torch.empty_like(x)  # not bool first: to convert that takes five times as long
    torch.ge(quarters.view(x.shape), round(rate * _LEVELS) - _LEVELS // 2, out=kept)
    return kept.mul_(1.0 / (1.0 - rate))

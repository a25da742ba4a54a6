"""Dynamic loss scaling for fp16 (Micikevicius et al. 2018), without waiting for the device.

Gradients in fp16 underflow below 6e-8. The loss is multiplied by a scale that is halved when a
gradient overflows, which skips the update, and doubled after 2,000 updates without an overflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST, LEAST, INTERVAL = 2.0**16, 1.0, 2000


class LossScale:
    """What the loss is multiplied by; always 1 where it is not wanted."""

    def __init__(self, wanted: bool, device: torch.device) -> None:
        self.wanted = wanted
        self.value = torch.tensor(FIRST if wanted else 1.0, device=device)
        self.clean = torch.zeros((), device=device)
        """Updates in a row without an overflow."""

    def is_overflow(self, is_finite: Tensor) -> Tensor:
        """Whether a gradient that is not finite is due to the scale, and so no failure."""
        return ~is_finite & (self.value > LEAST)

    def update(self, is_finite: Tensor) -> None:
        """Adapts the scale to the last gradient."""
        if not self.wanted:
            return
        self.clean = torch.where(is_finite, self.clean + 1, 0.0)
        is_due = self.clean >= INTERVAL
        factor = torch.where(is_finite, torch.where(is_due, 2.0, 1.0), 0.5)
        self.value = (self.value * factor).clamp(min=LEAST)
        self.clean = torch.where(is_due, 0.0, self.clean)

    def state(self) -> list[float]:
        """The scale and the updates without overflow, for a checkpoint."""
        return [float(self.value), float(self.clean)]

    def restore(self, state: list[float]) -> None:
        """Goes on from a checkpoint's state."""
        if len(state) == 2 and self.wanted:
            self.value, self.clean = (torch.full_like(self.value, number) for number in state)

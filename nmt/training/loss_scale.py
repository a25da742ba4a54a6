"""Dynamic loss scaling for fp16 (Micikevicius et al. 2018), without waiting for the device.

Gradients in fp16 underflow below 6e-8, so the loss is multiplied by a scale. If a gradient
overflows, the update is skipped and the scale halved. After 2,000 updates without an overflow the
scale is doubled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.errors import NmtError
from nmt.runtime.distributed import World
from nmt.runtime.precision import Precision, pick_precision

FIRST, LEAST, INTERVAL = 2.0**16, 1.0, 2000


class LossScale:
    """The factor of the loss in fp16; 1 in other precisions."""

    def __init__(self, wanted: bool, device: torch.device) -> None:
        self.wanted = wanted
        self.value = torch.tensor(FIRST if wanted else 1.0, device=device)
        self.clean = torch.zeros((), device=device)
        """Updates in a row without an overflow."""

    def is_overflow(self, is_finite: Tensor) -> Tensor:
        """Return whether the scale explains a gradient that is not finite, so it is no failure."""
        return ~is_finite & (self.value > LEAST)

    def update(self, is_finite: Tensor) -> None:
        """Adapt the scale to the last gradient."""
        if not self.wanted:
            return
        self.clean = torch.where(is_finite, self.clean + 1, 0.0)
        is_due = self.clean >= INTERVAL
        factor = torch.where(is_finite, torch.where(is_due, 2.0, 1.0), 0.5)
        self.value = (self.value * factor).clamp(min=LEAST)
        self.clean = torch.where(is_due, 0.0, self.clean)

    def state(self) -> list[float]:
        """Return the scale and the updates without overflow, for a checkpoint."""
        return [float(self.value), float(self.clean)]

    def restore(self, state: list[float]) -> None:
        """Restore the state of a checkpoint."""
        if len(state) == 2 and self.wanted:
            self.value, self.clean = (torch.full_like(self.value, number) for number in state)


def is_fp16(precision: Precision, world: World) -> bool:
    """Return whether all processes train in fp16.

    Raises:
        NmtError: only some of them do; gradients of scaled and unscaled losses cannot be added.
    """
    chosen = sorted({*world.gather(pick_precision(precision, world.device))})
    if len(chosen) > 1 and "fp16" in chosen:
        raise NmtError(
            f"train.precision: auto chooses {' and '.join(chosen)} on different devices; "
            "set train.precision to fp16 or fp32"
        )
    return chosen == ["fp16"]

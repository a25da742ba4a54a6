"""Curves of numbers that were measured during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Axis = Literal["update", "minutes"]

POINTS = 600
"""Number of points of a thinned curve, about one for each pixel of its picture."""


@dataclass(frozen=True)
class Curve:
    """Values that were measured during training, each after an update."""

    updates: Sequence[float]
    minutes: Sequence[float]
    """Minutes of training at these updates."""
    values: Sequence[float]

    def __len__(self) -> int:
        return len(self.updates)

    def places(self, axis: Axis) -> Sequence[float]:
        """Return where the values are on an axis."""
        return self.updates if axis == "update" else self.minutes

    def thinned(self, most: int = POINTS) -> Curve:
        """Return the curve with at most about `most` points, which a picture cannot tell apart.

        The updates are divided into `most` / 2 equal ranges. The smallest and the greatest value
        of each range stay, and so do the first and the last value of the curve.
        """
        if len(self) <= most:
            return self
        updates, values = np.asarray(self.updates), np.asarray(self.values)
        edges = np.linspace(updates[0], updates[-1], most // 2 + 1)[1:-1]
        ranges = np.split(np.arange(len(self)), np.searchsorted(updates, edges))
        kept = {0, len(self) - 1}
        for part in ranges:
            if len(part):
                kept |= {int(part[values[part].argmin()]), int(part[values[part].argmax()])}

        def take(column: Sequence[float]) -> Sequence[float]:
            return [column[at] for at in sorted(kept)]

        return Curve(take(self.updates), take(self.minutes), take(self.values))

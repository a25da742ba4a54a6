"""Curves of numbers that were measured during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    errors: Sequence[float] = field(default=())
    """Standard errors of the values, if these are means."""

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
            return [column[at] for at in sorted(kept)] if column else ()

        columns = (self.updates, self.minutes, self.values, self.errors)
        return Curve(*map(take, columns))


def mean(curves: Sequence[Curve], axis: Axis) -> Curve:
    """Return the mean of curves with its standard errors.

    The mean has a point wherever one of the curves has a point, in the range that all of them
    cover. Between their points curves are interpolated linearly.

    Args:
        curves: at least one; each has at least one point.
        axis: where values belong together: at the same update, or after the same time.
    """
    if len(curves) == 1:
        return curves[0]
    first = max(curve.places(axis)[0] for curve in curves)
    last = min(curve.places(axis)[-1] for curve in curves)
    places = np.unique(np.concatenate([curve.places(axis) for curve in curves]))
    places = places[(first <= places) & (places <= last)]
    columns = {
        name: np.stack(
            [np.interp(places, curve.places(axis), getattr(curve, name)) for curve in curves]
        )
        for name in ("updates", "minutes", "values")
    }
    errors = columns["values"].std(axis=0, ddof=1) / math.sqrt(len(curves))
    means = {name: list(map(float, column.mean(axis=0))) for name, column in columns.items()}
    return Curve(**means, errors=list(map(float, errors)))


def seed_group(name: str) -> str:
    """Return the name of a run without the number at its end, as of runs with several seeds.

    Runs whose names are numbers are "runs" together.
    """
    return name.rstrip("0123456789").rstrip("-_. ") or "runs"


def averaged(curves: Mapping[str, Curve], axis: Axis) -> dict[str, Curve]:
    """Return the means of the curves whose names differ only in the number at their end."""
    groups: dict[str, list[Curve]] = {}
    for name, curve in curves.items():
        groups.setdefault(seed_group(name), []).append(curve)
    return {name: mean(group, axis) for name, group in groups.items()}

"""Scores of runs that differ in their random seed only: means, errors, and significance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

POINTS = 10_000
"""Points of an integral; its relative error is below 1e-4."""


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """The scores of a group of runs."""

    values: tuple[float, ...]
    """The score of each run."""
    mean: float
    standard_deviation: float | None
    """Of the runs, with n - 1 in the denominator; None for a single run."""
    standard_error: float | None
    """Standard deviation divided by the square root of the number of runs."""
    p_value: float | None
    """Two-sided p-value of Welch's t-test against the first group; None for the first group."""


def group_scores(groups: Mapping[str, Sequence[float]]) -> dict[str, GroupScore]:
    """Return the mean, errors and significance of each group.

    Args:
        groups: the scores of the runs of each group, at least one; the first group is the baseline.
    """
    baseline = next(iter(groups), "")
    scores = {}
    for name, values in groups.items():
        deviation = statistics.stdev(values) if len(values) > 1 else None
        scores[name] = GroupScore(
            values=tuple(values),
            mean=statistics.fmean(values),
            standard_deviation=deviation,
            standard_error=None if deviation is None else deviation / math.sqrt(len(values)),
            p_value=None if name == baseline else welch_test(groups[baseline], values),
        )
    return scores


def welch_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test: the two means are equal.

    Welch 1947, *The Generalization of "Student's" Problem when Several Different Population
    Variances are Involved*. Return None if a side has fewer than two values, or all values of both
    sides are equal, because the variance of the mean is then unknown or 0.
    """
    if min(len(first), len(second)) < 2:
        return None
    squares = [statistics.variance(side) / len(side) for side in (first, second)]
    if not (square := sum(squares)):
        return None
    t = (statistics.fmean(first) - statistics.fmean(second)) / math.sqrt(square)
    sizes = (len(first), len(second))
    # The Welch-Satterthwaite equation.
    freedom = square**2 / sum(
        part**2 / (size - 1) for part, size in zip(squares, sizes, strict=True)
    )
    # With t = sqrt(freedom) tan(u), the density of Student's distribution is a power of cos(u).
    tail, half = (_integral(low, freedom - 1) for low in (math.atan(abs(t) / freedom**0.5), 0.0))
    # Both tails by both halves: the factor 2 and the density's constant cancel out.
    return tail / half


def _integral(low: float, power: float) -> float:
    """Return the integral of cos(u) ** power from `low` to pi / 2, by the midpoint rule."""
    width = math.pi / 2 - low
    points = low + width * (np.arange(POINTS) + 0.5) / POINTS
    return width * float(np.mean(np.cos(points) ** power))

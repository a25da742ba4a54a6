"""Weights of features that choose the best translation of each n-best list, for a metric.

Minimum error rate training (Och 2003): on a line in the space of weights, the translation that is
chosen for a sentence changes at few points, and the metric is constant between two of them. So the
best point of a line is found exactly, for any metric that is computed from summed counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.evaluation.metrics import Counts, Metric

Floats = NDArray[np.float64]

NARROW = 1e-9
"""Width of an interval on a line that rounding may hide."""


class TuningSet:
    """N-best lists of a set of sentences, with features and the counts of a metric.

    Args:
        features: [N, F], the features of all translations, one sentence after another.
        counts: the metric's counts of each translation.
        sizes: the number of translations of each sentence, at least 1.
        metric: the metric; for an error rate, lower is better.
    """

    def __init__(
        self, features: Counts, counts: Counts, sizes: Sequence[int], metric: Metric
    ) -> None:
        self._exist = np.arange(max(sizes)) < np.array(sizes)[:, None]  # [S, K]
        self._features = np.zeros((*self._exist.shape, len(features[0])))
        self._features[self._exist] = features
        self._counts = np.zeros((*self._exist.shape, len(counts[0])))
        self._counts[self._exist] = counts
        self._metric = metric

    def tune(self, seed: int = 1, restarts: int = 10) -> tuple[Floats, float]:
        """Return weights [F], whose absolute values add up to 1, and the metric with them.

        The search begins with equal weights, with each feature alone, and with random weights. From
        each beginning the search moves to the best point on the lines of single features and of
        random directions, until no line is better.

        Args:
            seed: random seed.
            restarts: number of random beginnings.
        """
        random = np.random.default_rng(seed)
        number = self._features.shape[2]
        scales = self._scales()
        starts = [np.ones(number), *np.eye(number), *random.normal(size=(restarts, number))]
        # In units of their deviations, so that a random direction moves all features alike.
        climbed = [self._climb(start / scales, scales, random) for start in starts]
        # Rounded first, so that the value belongs to the weights that are printed.
        rounded = [_rounded(weights) for weights in climbed]
        values = [self.value(weights) for weights in rounded]
        best = int(np.argmax(values) if self._metric.higher_is_better else np.argmin(values))
        return rounded[best], values[best]

    def value(self, weights: Floats) -> float:
        """Return the metric of the translations with the greatest weighted sums of features."""
        sums = np.where(self._exist, self._features @ weights, -np.inf)
        return self._value(self._at(sums.argmax(1)).sum(0))

    def first_value(self) -> float:
        """Return the metric of the first translation of each list."""
        return self._value(self._counts[:, 0].sum(0))

    def _climb(self, weights: Floats, scales: Floats, random: np.random.Generator) -> Floats:
        value = self._signed(self.value(weights))
        while True:
            before = value
            lines = np.concatenate([np.eye(len(scales)), random.normal(size=(len(scales),) * 2)])
            for direction in lines / scales:
                step, reached = self._best_on_line(weights, direction)
                if reached > value:
                    weights, value = weights + step * direction, reached
            if value <= before:
                return weights

    def _best_on_line(self, weights: Floats, direction: Floats) -> tuple[float, float]:
        """Return the step along a direction with the best value, and that value, signed."""
        steps, changes, heights = [], [], self._features @ weights
        # Translations that do not exist are never the least steep, and below never the steepest.
        slopes = np.where(self._exist, self._features @ direction, np.inf)
        least = slopes == slopes.min(1, keepdims=True)
        chosen = np.where(least, heights, -np.inf).argmax(1)  # far on the line's negative side
        slopes[~self._exist] = -np.inf
        total = self._at(chosen).sum(0)
        rows = np.arange(len(chosen))
        # Along the upper envelope of the lines: at each crossing a steeper one takes over.
        while True:
            rise = slopes - slopes[rows, chosen][:, None]
            lead = heights[rows, chosen][:, None] - heights
            crossings = np.divide(lead, rise, out=np.full_like(lead, np.inf), where=rise > 0)
            soonest = crossings.min(1)
            is_passed = np.isfinite(soonest)
            if not is_passed.any():
                break
            # Of lines that cross at one point the steepest is the highest after it.
            steepest = np.where(crossings == soonest[:, None], slopes, -np.inf).argmax(1)
            following = np.where(is_passed, steepest, chosen)
            steps.append(soonest[is_passed])
            changes.append((self._at(following) - self._at(chosen))[is_passed])
            chosen = following
        if not steps:
            return 0.0, self._signed(self._value(total))
        points = np.concatenate(steps)
        order = points.argsort(kind="stable")
        points, totals = points[order], total + np.concatenate(changes)[order].cumsum(0)
        # Beyond the outermost crossings nothing changes, at any distance.
        ends = np.concatenate([[points[0] - 2], points, [points[-1] + 2]])
        wide = np.flatnonzero(np.diff(ends) > NARROW)
        sums = np.concatenate([total[None], totals])[wide]
        values = [self._signed(self._value(row)) for row in sums]
        best = int(np.argmax(values))
        # The middle of the interval is the farthest from a change of any choice.
        return float(ends[wide[best]] + ends[wide[best] + 1]) / 2, values[best]

    def _at(self, chosen: NDArray[np.int64]) -> Floats:
        """Return the counts [S, C] of a translation of each sentence."""
        rows: Floats = self._counts[np.arange(len(chosen)), chosen]
        return rows

    def _value(self, total: Floats) -> float:
        return self._metric.compute([total.tolist()])[0]

    def _signed(self, value: float) -> float:
        return value if self._metric.higher_is_better else -value

    def _scales(self) -> Floats:
        """Return the standard deviation [F] of each feature within sentences, or 1 if it is 0."""
        counts = self._exist.sum(1)[:, None, None]
        centred = self._features - self._features.sum(1, keepdims=True) / counts
        scales: Floats = np.sqrt((centred[self._exist] ** 2).mean(0))
        return np.where(scales > 0, scales, 1.0)


def _rounded(weights: Floats) -> Floats:
    """Return the weights divided by their sum, rounded to six digits as in the output."""
    total = np.abs(weights).sum() or 1.0
    return np.array([float(f"{weight:.6g}") for weight in weights / total])

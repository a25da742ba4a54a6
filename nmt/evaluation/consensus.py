"""Minimum Bayes risk decoding: choose the translation that agrees most with the others.

Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020. Comparing all candidates with
each other takes a time that grows with the square of their number. Pruning compares only those that
agree best with the average of all (Vamvas and Sennrich 2024, *aggregate-to-fine*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from nmt.evaluation.metrics import Metric


def expected_utilities(
    candidates: Sequence[str], metric: Metric, most: int | None = None
) -> list[float]:
    """Return the mean utility of each candidate, with every candidate as the reference in turn.

    Args:
        candidates: detokenised text; a repeated candidate counts as often as it occurs.
        metric: a metric for sentences (`Metric.for_sentences`); of an error rate, the utility is
            the negative.
        most: number of distinct candidates to compare with all others: those that agree best with
            the average of all. None for all; the metric has an average otherwise. Utilities of the
            others are minus infinity.
    """
    counts = Counter(candidates)
    compared, sign = list(counts), 1 if metric.higher_is_better else -1
    if most is not None and most < len(compared):
        rows = metric.counts_against_average(compared, [*counts.values()])
        values = [sign * metric.compute([row])[0] for row in rows]
        best = sorted(range(len(compared)), key=lambda at: -values[at])[:most]
        compared = [compared[at] for at in sorted(best)]
    sums = dict.fromkeys(compared, 0.0)
    for reference, count in counts.items():
        rows = metric.checked_counts(compared, [reference] * len(compared))
        for candidate, row in zip(compared, rows, strict=True):
            sums[candidate] += sign * count * metric.compute([row])[0]
    return [sums.get(candidate, -inf) / len(candidates) for candidate in candidates]

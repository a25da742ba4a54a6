"""Minimum Bayes risk decoding: choose the translation that agrees most with the others.

Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nmt.evaluation.metrics import Metric


def expected_utilities(candidates: Sequence[str], metric: Metric) -> list[float]:
    """Return the mean utility of each candidate, with every candidate as the reference in turn.

    Args:
        candidates: detokenised text; a repeated candidate counts as often as it occurs.
        metric: a metric for sentences (`Metric.for_sentences`); of an error rate, the utility is
            the negative.
    """
    counts = Counter(candidates)
    distinct, sign = list(counts), 1 if metric.higher_is_better else -1
    sums = dict.fromkeys(distinct, 0.0)
    for reference, count in counts.items():
        rows = metric.checked_counts(distinct, [reference] * len(distinct))
        for candidate, row in zip(distinct, rows, strict=True):
            sums[candidate] += sign * count * metric.compute([row])[0]
    return [sums[candidate] / len(candidates) for candidate in candidates]

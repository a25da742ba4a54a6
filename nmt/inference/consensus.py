"""Minimum Bayes risk decoding: choose the translation that agrees most with all translations.

Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020. To compare all candidates
with each other takes a time that grows with the square of their number. Pruning compares only the
candidates that agree best with the average of all (Vamvas and Sennrich 2024, *aggregate-to-fine*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

from nmt.evaluation.metrics import Metric
from nmt.search import Hypothesis


def by_consensus(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], metric: Metric, most: int | None = None
) -> list[Hypothesis]:
    """Return one hypothesis for each distinct text, in the order of their expected utilities.

    The utilities become the scores. A text that occurs n times, as samples may, counts as n
    references for the other texts.

    Args:
        hypotheses: hypotheses of one line; there may be none.
        texts: the text of each hypothesis.
        metric: a metric for sentences.
        most: number of distinct texts to compare with all texts, see :func:`expected_utilities`;
            the other hypotheses are left out. None for all.
    """
    by_text: dict[str, Hypothesis] = {}
    values = expected_utilities(texts, metric, most)
    for text, hypothesis, value in zip(texts, hypotheses, values, strict=True):
        # The utility of what pruning has left out is minus infinity.
        if isfinite(value):
            # Equal texts have equal values; the first one is the likeliest.
            by_text.setdefault(text, replace(hypothesis, score=value))
    return sorted(by_text.values(), key=lambda hypothesis: -hypothesis.score)


def expected_utilities(
    candidates: Sequence[str], metric: Metric, most: int | None = None
) -> list[float]:
    """Return the mean utility of each candidate, with every candidate as the reference in turn.

    Args:
        candidates: detokenised text; a repeated candidate counts as often as it occurs.
        metric: a metric for sentences (`Metric.for_sentences`); of an error rate, the utility is
            the negative.
        most: number of distinct candidates to compare with all candidates: the ones that agree
            best with the average of all. None for all; with a number, the metric has an average.
            Utilities of the remaining candidates are minus infinity.
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

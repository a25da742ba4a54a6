"""Rank the hypotheses of a search by minimum Bayes risk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite

from nmt.evaluation.consensus import expected_utilities
from nmt.evaluation.metrics import Metric
from nmt.search import Hypothesis


def by_consensus(
    lists: Sequence[list[Hypothesis]],
    decode: Callable[[list[list[int]]], list[str]],
    metric: Metric,
    most: int | None = None,
) -> list[list[Hypothesis]]:
    """Return each list in the order of its expected utilities, which become the scores.

    Args:
        lists: hypotheses of each line.
        decode: returns the texts of token lists.
        metric: a metric for sentences.
        most: number of distinct texts to compare with all others, see :func:`expected_utilities`;
            the other hypotheses are left out. None for all.
    """
    texts = iter(decode([hypothesis.tokens for hypotheses in lists for hypothesis in hypotheses]))
    ranked = []
    for hypotheses in lists:
        candidates = list(islice(texts, len(hypotheses)))
        values = expected_utilities(candidates, metric, most) if candidates else []
        scored = [
            replace(hypothesis, score=value)
            for hypothesis, value in zip(hypotheses, values, strict=True)
            if isfinite(value)
        ]
        ranked.append(sorted(scored, key=lambda hypothesis: -hypothesis.score))
    return ranked

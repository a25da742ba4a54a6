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
    """Return the distinct texts of each list in the order of their expected utilities.

    The utilities become the scores. A text that occurs several times, as among samples, counts as
    often for the others.

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
        by_text: dict[str, Hypothesis] = {}
        for text, hypothesis, value in zip(candidates, hypotheses, values, strict=True):
            if isfinite(value):
                by_text.setdefault(text, replace(hypothesis, score=value))
        ranked.append(sorted(by_text.values(), key=lambda hypothesis: -hypothesis.score))
    return ranked

"""Averages of what sacreBLEU counts in references: n-grams and lengths.

The agreement of a translation with the average of many references takes one comparison instead of
many (Vamvas and Sennrich 2024, *Linear-time Minimum Bayes Risk Decoding with Reference
Aggregation*; for BLEU DeNero et al. 2009, *Fast Consensus Decoding over Translation Forests*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Metric as SacreBleuMetric


def counts_against_average(
    scorer: SacreBleuMetric, texts: Sequence[str], weights: Sequence[int]
) -> list[list[float]]:
    """Return the counts of each text, with the average of all texts as its reference.

    Args:
        scorer: a metric of n-grams.
        texts: detokenised text.
        weights: how often each text occurs.
    """
    lines = [scorer._preprocess_segment(text) for text in texts]
    counted = [scorer._extract_reference_info([line]) for line in lines]
    average = _average(counted, [weight / sum(weights) for weight in weights])
    return [scorer._compute_segment_statistics(line, average) for line in lines]


def _average(values: Sequence[Any], shares: Sequence[float]) -> Any:
    """Return the weighted mean of numbers, or of numbers within lists, mappings and counters."""
    first = values[0]
    if isinstance(first, Counter):
        mean: dict[Any, float] = {}
        for counter, share in zip(values, shares, strict=True):
            for key, count in counter.items():
                mean[key] = mean.get(key, 0.0) + share * count
        return mean
    if isinstance(first, dict):
        return {key: _average([value[key] for value in values], shares) for key in first}
    if isinstance(first, list):
        return [_average(parts, shares) for parts in zip(*values, strict=True)]
    return sum(share * value for value, share in zip(values, shares, strict=True))

"""Minimum Bayes risk: of several translations, the one that the others agree with most.

Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

Utility = Literal["chrf", "bleu"]

_METRICS: dict[Utility, Callable[[], Metric]] = {
    "chrf": CHRF,
    "bleu": partial(BLEU, effective_order=True),  # for sentences without a common 4-gram
}


def expected_utilities(candidates: Sequence[str], utility: Utility) -> list[float]:
    """How good each candidate is on average if each of them is as likely to be the reference.

    Args:
        candidates: detokenised; those that are there several times count as often.
        utility: the sentence-level metric, by sacreBLEU, in per cent.
    """
    metric, counts = _METRICS[utility](), Counter(candidates)
    means = {
        candidate: sum(
            count * metric.sentence_score(candidate, [reference]).score
            for reference, count in counts.items()
        )
        / len(candidates)
        for candidate in counts
    }
    return [means[candidate] for candidate in candidates]

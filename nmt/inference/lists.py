"""Lists of translations: with distinct texts, and ranked by minimum Bayes risk.

A search finds hypotheses that differ in their tokens. Several hypotheses may segment the same text
into different subwords. If too few distinct texts remain, the search runs again for a list twice as
long, up to a limit. After that, the list of a sentence stays too short.

Minimum Bayes risk decoding chooses the translation that agrees most with the other translations
(Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020). To compare all candidates
with each other takes a time that grows with the square of their number. Pruning compares only the
candidates that agree best with the average of all (Vamvas and Sennrich 2024, *aggregate-to-fine*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING

from nmt.evaluation.metrics import Metric
from nmt.inference.request import Sentence
from nmt.search import Hypothesis

if TYPE_CHECKING:
    from nmt.inference.lines import LineTranslator

LONGER = 8
"""Largest factor of the requested number of hypotheses, which bounds the time of the search. Few
sentences need more than two."""

MAX_LIST = 256
"""Number of hypotheses above which a list is at most twice as long as requested. Drawing distinct
samples takes memory that grows with the square of their number."""


def distinct_lists(
    translator: LineTranslator, sentences: dict[int, Sentence], count: int
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Find `count` hypotheses with distinct texts of each sentence, where the search finds so many.

    Yields:
        The number of a sentence and its hypotheses, best first; sentences in any order.
    """
    asked, longest = count, max(2 * count, min(LONGER * count, MAX_LIST))
    while sentences:
        too_few = {}
        for at, hypotheses in translator.find(sentences, asked):
            by_text: dict[str, Hypothesis] = {}
            texts = translator.subwords.decode_target([one.tokens for one in hypotheses])
            for text, hypothesis in zip(texts, hypotheses, strict=True):
                by_text.setdefault(text, hypothesis)
            if len(by_text) < count and len(hypotheses) >= asked and asked < longest:
                too_few[at] = sentences[at]
            else:
                yield at, list(by_text.values())
        sentences, asked = too_few, min(2 * asked, longest)


def by_consensus(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], metric: Metric, most: int | None = None
) -> list[Hypothesis]:
    """Return one hypothesis for each distinct text, in the order of their expected utilities.

    The utilities become the scores. A text that occurs several times, as samples may, is as many
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
        if isfinite(value):
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

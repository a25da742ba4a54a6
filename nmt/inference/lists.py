"""Lists of translations that differ in their texts.

A search finds hypotheses that differ in their tokens. Several hypotheses may segment the same text
into different subwords. If too few distinct texts remain, the search runs again for a list twice as
long, up to a limit. After that, the list of a sentence stays too short.

Rank the hypotheses of a search by minimum Bayes risk.

Minimum Bayes risk decoding: choose the translation that agrees most with the others.

Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020. Comparing all candidates with
each other takes a time that grows with the square of their number. Pruning compares only those that
agree best with the average of all (Vamvas and Sennrich 2024, *aggregate-to-fine*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf, isfinite

from nmt.evaluation.metrics import Metric
from nmt.inference.request import Sentence
from nmt.search import Hypothesis

LONGER = 8
"""Largest factor of the requested number of hypotheses, which bounds the time of the search. Few
sentences need more than two."""

MAX_LIST = 256
"""Number of hypotheses above which a list is at most twice as long as requested. Drawing distinct
samples takes memory that grows with the square of their number."""

Lists = Iterable[tuple[int, list[Hypothesis]]]


def distinct_lists(
    find: Callable[[dict[int, Sentence], int], Lists],
    decode: Callable[[list[list[int]]], list[str]],
    sentences: dict[int, Sentence],
    count: int,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Find `count` hypotheses with distinct texts of each sentence, where the search finds so many.

    Args:
        find: returns hypotheses of sentences, best first, up to the given number for each.
        decode: returns the texts of token lists.
        sentences: sentences by number.
        count: number of distinct texts.

    Yields:
        The number of a sentence and its hypotheses, best first; sentences in any order.
    """
    asked, longest = count, max(2 * count, min(LONGER * count, MAX_LIST))
    while sentences:
        too_few = {}
        for at, hypotheses in find(sentences, asked):
            by_text: dict[str, Hypothesis] = {}
            texts = decode([hypothesis.tokens for hypothesis in hypotheses])
            for text, hypothesis in zip(texts, hypotheses, strict=True):
                by_text.setdefault(text, hypothesis)
            if len(by_text) < count and len(hypotheses) >= asked and asked < longest:
                too_few[at] = sentences[at]
            else:
                yield at, list(by_text.values())
        sentences, asked = too_few, min(2 * asked, longest)


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

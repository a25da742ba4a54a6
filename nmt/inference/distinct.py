"""Lists of translations that differ in their texts.

A search finds hypotheses that differ in their tokens. Several hypotheses may segment the same text
into different subwords. If too few distinct texts remain, the search runs again for a list twice as
long, up to a limit. After that, the list of a sentence stays too short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

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

"""Lists of translations that differ in their texts.

A search finds hypotheses that differ in their tokens. Several of them may be one text in other
subwords; where too few texts are left without them, the search is asked for a longer list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nmt.inference.translation import Sentence
from nmt.search import Hypothesis

LONGER_LISTS = (1, 2, 4, 8)
"""How many times as many hypotheses are asked for, in turn. Few sentences need more than two."""

Lists = Iterable[tuple[int, list[Hypothesis]]]


def distinct_lists(
    find: Callable[[dict[int, Sentence], int], Lists],
    decode: Callable[[list[list[int]]], list[str]],
    sentences: dict[int, Sentence],
    count: int,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses of each sentence, `count` with different texts where the search finds so many.

    Args:
        find: the hypotheses of sentences, best first, so many of each where there are as many.
        decode: the texts of tokens.
        sentences: by their numbers.
        count: the number of different texts.
    """
    for factor in LONGER_LISTS:
        asked, too_few = factor * count, {}
        for at, hypotheses in find(sentences, asked):
            by_text: dict[str, Hypothesis] = {}
            for text, hypothesis in zip(
                decode([it.tokens for it in hypotheses]), hypotheses, strict=True
            ):
                by_text.setdefault(text, hypothesis)
            if len(by_text) < count and len(hypotheses) >= asked and factor < LONGER_LISTS[-1]:
                too_few[at] = sentences[at]
            else:
                yield at, list(by_text.values())
        if not too_few:
            return
        sentences = too_few

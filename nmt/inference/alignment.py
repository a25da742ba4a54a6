"""Which words of a line belong to which words of its translation, by the model's attention.

Words are what white space divides, in the line and in the detokenised text; pieces are assigned to
the words in which they begin.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

Links = tuple[tuple[int, int], ...]
"""Pairs of places, in the source and in the text, at which words begin that belong together."""


def word_starts(text: str) -> list[int]:
    """Where the words of a text begin."""
    return [word.start() for word in re.finditer(r"\S+", text)]


def words_of_pieces(text: str, places: Sequence[int]) -> list[int]:
    """The number of the word, from 0, to which each piece belongs; -1 for none.

    Args:
        text: as it was encoded or decoded.
        places: where each piece begins; the white space before a word belongs to it.
    """
    starts = word_starts(text)
    found = []
    for place in places:
        word = re.compile(r"\s*\S").match(text, place)
        found.append(bisect_right(starts, word.end() - 1) - 1 if word else -1)
    return found


def linked(
    source: str, source_places: list[int], text: str, places: list[int], weights: Tensor
) -> Links:
    """For each word of the text, the word of the source to which it attends the most.

    Args:
        source: a line.
        source_places: where its pieces begin, S of them.
        text: its translation.
        places: where the pieces of that begin, T of them.
        weights: [at least T, S' + 1], how much giving each piece attends to each of the source; S'
            is below S where the source was cut, and the last column is that of its end.
    """
    starts = word_starts(source), word_starts(text)
    source_places = source_places[: weights.size(1) - 1]
    columns = torch.tensor(words_of_pieces(source, source_places), dtype=torch.int64)
    rows = torch.tensor(words_of_pieces(text, places), dtype=torch.int64)
    is_word = rows >= 0, columns >= 0
    own = weights[: len(rows), : len(columns)].double().cpu()[is_word[0]][:, is_word[1]]
    rows, columns = rows[is_word[0]], columns[is_word[1]]
    if not own.numel():
        return ()
    words = torch.zeros(len(starts[1]), len(starts[0]), dtype=torch.float64)
    words.index_put_((rows[:, None], columns[None]), own, accumulate=True)
    best = words.argmax(1).tolist()
    return tuple((starts[0][best[row]], starts[1][row]) for row in sorted({*rows.tolist()}))

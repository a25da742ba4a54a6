"""Which words of a line belong to which words of its translation, by the model's attention.

Words are what white space divides, in the line and in the detokenised text; pieces are assigned to
the words in which they begin. Text without spaces between words has no such words; there the pieces
themselves are linked.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Unit = Literal["words", "pieces"]

Links = tuple[tuple[int, int], ...]
"""Pairs of places, in the source and in the text, at which units begin that belong together."""


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


def piece_starts(places: Sequence[int]) -> list[int]:
    """Return where pieces begin, once for the bytes of one character."""
    return sorted({*places})


def linked(
    source: str,
    source_places: list[int],
    text: str,
    places: list[int],
    weights: Tensor,
    unit: Unit = "words",
) -> Links:
    """For each unit of the text, the unit of the source to which it attends the most.

    Args:
        source: a line.
        source_places: where its pieces begin, S of them.
        text: its translation.
        places: where the pieces of that begin, T of them.
        weights: [at least T, S' + 1], how much giving each piece attends to each of the source; S'
            is below S where the source was cut, and the last column is that of its end.
        unit: what is linked.
    """
    (source_starts, of_source), (starts, of_text) = (
        _units(line, begins, unit) for line, begins in ((source, source_places), (text, places))
    )
    columns = torch.tensor(of_source[: weights.size(1) - 1], dtype=torch.int64)
    rows = torch.tensor(of_text, dtype=torch.int64)
    is_word = rows >= 0, columns >= 0
    own = weights[: len(rows), : len(columns)].double().cpu()[is_word[0]][:, is_word[1]]
    rows, columns = rows[is_word[0]], columns[is_word[1]]
    if not own.numel():
        return ()
    sums = torch.zeros(len(starts), len(source_starts), dtype=torch.float64)
    sums.index_put_((rows[:, None], columns[None]), own, accumulate=True)
    best = sums.argmax(1).tolist()
    return tuple((source_starts[best[row]], starts[row]) for row in sorted({*rows.tolist()}))


def numbered(links: Links, starts: tuple[Sequence[int], Sequence[int]]) -> list[tuple[int, int]]:
    """Return links as pairs of numbers of units, from 0, by where the units of both texts begin."""
    pairs = {
        (bisect_right(starts[0], source) - 1, bisect_right(starts[1], target) - 1)
        for source, target in links
    }
    return sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def _units(text: str, places: list[int], unit: Unit) -> tuple[list[int], list[int]]:
    """Where the units of a text begin, and the number of the unit of each piece, -1 for none."""
    if unit == "words":
        return word_starts(text), words_of_pieces(text, places)
    starts = piece_starts(places)
    return starts, [bisect_right(starts, place) - 1 for place in places]

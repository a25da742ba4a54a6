"""Cleaning step: pairs that are nearly equal to an earlier one, by MinHash.

The share of equal hashes of two signatures estimates the similarity of the pairs: the size of the
intersection of their sets of character n-grams, divided by that of the union (Broder 1997). Pairs
are compared if one band of their signatures is equal. The package datasketch would keep this index
in memory; here it is sorted on disk, like the keys of equal pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from nmt.languages import combining_marks
from nmt.preprocess.cleaning_steps import Step, steps
from nmt.preprocess.duplicates import BLOCK, Keys, repetitions

BANDS = 16
"""Bands of a signature; two pairs with similarity s are compared with probability
1 - (1 - s^ROWS)^BANDS: 0.9998 for 0.8, and 0.64 for 0.5."""

ROWS = 4
"""Hashes of a band. A hash has 16 bits, so a band is a key of 64."""

NGRAM = 5
"""Characters of an n-gram."""

CHUNK = 1 << 16
"""N-grams to hash at once, so that they stay in the cache of the processor."""

Signatures = npt.NDArray[np.uint16]

_MULTIPLIERS, _SUMMANDS = np.random.Generator(np.random.PCG64(1)).integers(
    1 << 32, size=(2, BANDS * ROWS), dtype=np.uint32
)


@steps.register("near_duplicates")
@dataclass(frozen=True, kw_only=True)
class NearDuplicates(Step):
    """Keeps only the first of nearly equal pairs, over all corpora.

    A pair is dropped if an earlier pair, kept or not, has nearly the same 5-grams of characters.
    Case, digits, spaces and punctuation do not count, unless a side has nothing else. Like
    ``duplicates``, the step runs after all other steps and after the limits in tokens; pairs that
    are equal count as ``duplicates`` if that step is there, too. With ``shard``, only pairs of the
    same part are compared.
    """

    min_similarity: float = 0.8
    """Share of n-grams in common from which a pair is dropped; it is estimated from 64 hashes, with
    a standard error of 0.05. In a sentence of twelve words, one other word leaves some 0.75."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.min_similarity <= 1:
            raise ValueError(f"min_similarity must be from 0.5 to 1, not {self.min_similarity}")


def signatures(source: list[str], target: list[str]) -> Signatures:
    """Return the MinHash signatures [n, BANDS * ROWS] of pairs."""
    texts = [
        f"{_compared(one)}\n{_compared(other)}" for one, other in zip(source, target, strict=True)
    ]
    result = np.empty((len(texts), BANDS * ROWS), np.uint16)
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    grams = _grams(texts)
    first = begin = 0
    while first < len(texts):
        last = max(first + 1, int(np.searchsorted(ends, begin + CHUNK, "right")))
        part = grams[begin : ends[last - 1]]
        starts = np.concatenate(([0], ends[first : last - 1] - begin))
        for row, (multiplier, summand) in enumerate(zip(_MULTIPLIERS | 1, _SUMMANDS, strict=True)):
            least = np.minimum.reduceat(part * multiplier + summand, starts)
            result[first:last, row] = least & 0xFFFF  # the high bits of a minimum are mostly 0
        first, begin = last, int(ends[last - 1])
    return result


def mark_similar(
    path: Path, marks: npt.NDArray[np.bool_], scratch: Path, min_similarity: float
) -> None:
    """Mark the pairs that are similar to an earlier pair.

    Takes the memory of a 256th of the pairs, 24 bytes each.

    Args:
        path: file of n signatures.
        marks: array [n] in which to set True; pairs that are marked already are not compared.
        scratch: directory to make, which needs 24 bytes a pair.
        min_similarity: share of equal hashes.
    """
    if not len(marks):
        return
    rows = np.memmap(path, "<u2", "r").reshape(len(marks), BANDS * ROWS)
    for band in range(BANDS):
        for firsts, others in repetitions(_keys(rows, band), scratch):
            for at in range(0, len(others), BLOCK):
                first, other = firsts[at : at + BLOCK], others[at : at + BLOCK]
                first, other = first[~marks[other]], other[~marks[other]]
                shares = np.mean(rows[first] == rows[other], axis=1)
                marks[other[shares >= min_similarity]] = True


def _keys(rows: Signatures, band: int) -> Iterator[tuple[int, Keys]]:
    """Yield the hashes of a band as keys, in blocks [k, 2], each with the index of its first."""
    for start in range(0, len(rows), BLOCK):
        block = np.ascontiguousarray(rows[start : start + BLOCK, band * ROWS : (band + 1) * ROWS])
        keys = np.zeros((len(block), 2), np.uint64)
        keys[:, 0] = block.view("<u8")[:, 0]
        yield start, keys


def _compared(line: str) -> str:
    """Return the part of a line that is compared; never empty, and without NUL."""
    text = _uncompared().sub(" ", normalize("NFC", line).casefold()).strip()
    return text or line.replace("\0", " ")


@cache
def _uncompared() -> re.Pattern[str]:
    """Return the pattern of what is not compared, with ASCII first, for speed."""
    return re.compile(rf"(?:[\0-\t\x0b-@\[-`{{-\x7f]|[^\w\n](?<![{combining_marks()}])|\d)+")


def _grams(texts: list[str]) -> npt.NDArray[np.uint32]:
    """Return the hashes of the n-grams of texts, one for each character."""
    padding = "\0" * (NGRAM - 1)
    padded = padding.join([*texts, padding]).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(padded, "<u4")
    size = len(codes) - NGRAM + 1
    hashes = np.zeros(size, np.uint32)
    for at in range(NGRAM):
        hashes = hashes * np.uint32(0x9E3779B1) + codes[at : at + size]
    hashes = hashes[codes[:size] != 0]
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    mixed: npt.NDArray[np.uint32] = hashes ^ (hashes >> np.uint32(16))
    return mixed

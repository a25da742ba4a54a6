"""Look at a parallel corpus in one pass and in bounded memory."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from nmt.preprocess.corpus import Bitext, Chunk
from nmt.preprocess.duplicates import joined

SAMPLE = 20_000
"""Distinct pairs of the sample from which lengths and speeds are measured."""

COUNTED = 8_000_000
"""Pairs up to which the distinct ones are counted, with 8 bytes for each; of more, estimated."""

_HASHES = 1 << 64


@dataclass(frozen=True)
class Pair:
    """A pair of the corpus."""

    source: str
    target: str


@dataclass(frozen=True)
class Survey:
    """Size of a corpus, and a random sample of its distinct pairs."""

    pairs: int
    """Number of lines of each side."""
    distinct: int
    """Number of distinct pairs; an estimate if there are more than `COUNTED` pairs."""
    sample: list[Pair]
    """At most `SAMPLE` distinct pairs, in the order of their hashes."""

    @property
    def is_whole(self) -> bool:
        """Whether the sample holds every distinct pair."""
        return self.distinct == len(self.sample)

    @property
    def is_counted(self) -> bool:
        """Whether `distinct` is no estimate."""
        return self.pairs <= COUNTED or self.is_whole


class Sketch:
    """The distinct pairs with the smallest hashes: a random sample.

    Up to `COUNTED` pairs, the distinct ones are counted by their hashes. Beyond, the largest hash
    kept tells about how many there are (Bar-Yossef et al. 2002, "Counting Distinct Elements in a
    Data Stream"). The same text gives the same sample, in any order.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._kept: dict[int, Pair] = {}
        self._bound = _HASHES
        self._hashes = array("Q")

    def add(self, source: str, target: str) -> None:
        """Count a pair."""
        self.total += 1
        key = _hash(source, target)
        if self.total <= COUNTED:
            self._hashes.append(key)
        if key >= self._bound:
            return
        self._kept[key] = Pair(source, target)
        if len(self._kept) == 2 * self.size:
            self._prune()

    def _prune(self) -> None:
        smallest = sorted(self._kept)[: self.size]
        self._kept = {key: self._kept[key] for key in smallest}
        self._bound = smallest[-1]

    def survey(self) -> Survey:
        """Return the size of the text and the sample."""
        if len(self._kept) > self.size:
            self._prune()
        keys = sorted(self._kept)
        sample = [self._kept[key] for key in keys]
        if self.total <= COUNTED:
            distinct = len(np.unique(np.asarray(self._hashes)))
        elif self._bound < _HASHES:
            distinct = min(self.total, round((self.size - 1) * _HASHES / keys[-1]))
        else:
            distinct = len(keys)
        return Survey(self.total, distinct, sample)


def _hash(source: str, target: str) -> int:
    digest = hashlib.blake2b(joined(source, target), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def survey(bitexts: Iterable[Bitext], size: int = SAMPLE) -> Survey:
    """Return the number of pairs of a corpus and a sample of the distinct ones.

    Raises:
        NmtError: a file is empty or damaged, or two files differ in their number of lines.
    """
    sketch = Sketch(size)
    for chunk in _watched("reading the corpus", bitexts):
        for source, target in zip(chunk.source, chunk.target, strict=True):
            sketch.add(source, target)
    return sketch.survey()


def lines_that_occur_once(bitexts: Iterable[Bitext], pairs: Sequence[Pair]) -> set[str]:
    """Return the lines of these pairs that the whole corpus has exactly once, on either side."""
    asked = {line for pair in pairs for line in (pair.source, pair.target)}
    counts: Counter[str] = Counter()
    for chunk in _watched("looking for repeated lines", bitexts):
        for side in (chunk.source, chunk.target):
            counts.update(line for line in side if line in asked)
    return {line for line, count in counts.items() if count == 1}


def has_most(bitexts: Iterable[Bitext], pairs: set[tuple[str, str]]) -> bool:
    """Return whether the corpus has at least half of these pairs."""
    missing = set(pairs)
    for chunk in _watched("looking for held-out pairs", bitexts):
        missing.difference_update(zip(chunk.source, chunk.target, strict=True))
        if 2 * len(missing) <= len(pairs):
            return True
    return False


def _watched(doing: str, bitexts: Iterable[Bitext]) -> Iterator[Chunk]:
    """Yield the pairs of all bitexts, with a count of them on a terminal."""
    with tqdm(desc=doing, unit=" pairs", unit_scale=True, disable=None, leave=False) as bar:
        for bitext in bitexts:
            for chunk in bitext.chunks(on_invalid_utf8=None):  # no recipe could replace it
                yield chunk
                bar.update(len(chunk.source))

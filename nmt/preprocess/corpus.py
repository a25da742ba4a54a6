"""Parallel text: reading pairs of files in bounded memory, and judging which pairs to keep.

A line ends at a line feed and nowhere else: U+2028, a lone carriage return or a NUL inside a line
never splits it, so that line 7 here is line 7 for every other tool.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice, zip_longest
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from nmt.errors import NmtError

CHUNK = 10_000
"""Lines that are read, encoded and written at once."""


class Verdict(IntEnum):
    """What becomes of a training pair."""

    KEPT = 0
    EMPTY = 1
    TOO_SHORT = 2
    TOO_LONG = 3
    UNEQUAL = 4


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which training pairs are left out. Held-out pairs are never left out or shortened.

    Lengths are in subword tokens, EOS included.
    """

    on_empty: Literal["drop", "error"] = "drop"
    """What to do with a training pair of which a side has no tokens."""

    on_invalid_utf8: Literal["error", "replace"] = "error"
    """What to do with bytes that are not UTF-8; "replace" puts U+FFFD in their place."""

    min_tokens_per_sentence: int = 1
    """Training pairs with a shorter side are dropped; 1 drops none."""

    max_tokens_per_sentence: int = 256
    """Training pairs with a longer side are dropped; 256 as in the paper's own training."""

    max_length_ratio: float | None = None
    """Training pairs whose longer side is more than this many times the shorter one are dropped;
    none by default, for only what training cannot use is dropped unasked. 1.5 is common for
    well-aligned languages of alike morphology, 9 removes only what is certainly no translation."""

    def __post_init__(self) -> None:
        if self.min_tokens_per_sentence < 1:
            raise ValueError(
                f"min_tokens_per_sentence must be at least 1, not {self.min_tokens_per_sentence}"
            )
        if self.max_tokens_per_sentence < max(2, self.min_tokens_per_sentence):
            raise ValueError(
                "max_tokens_per_sentence must be at least 2 and min_tokens_per_sentence, "
                f"not {self.max_tokens_per_sentence}"
            )
        if self.max_length_ratio is not None and self.max_length_ratio < 1:
            raise ValueError(f"max_length_ratio must be at least 1, not {self.max_length_ratio}")


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of one bitext; `first` is the line number of the first, from 1."""

    source: list[str]
    target: list[str]
    first: int


@dataclass(frozen=True)
class Bitext:
    """Two files with a sentence a line, each the translation of the other's."""

    source: Path
    target: Path

    @classmethod
    def find(cls, prefix: str, source_lang: str, target_lang: str) -> Bitext:
        """The files ``PREFIX.LANG`` or ``PREFIX.LANG.gz``; a missing one is an `NmtError`."""
        return cls(_find(f"{prefix}.{source_lang}"), _find(f"{prefix}.{target_lang}"))

    def chunks(self, on_invalid_utf8: str = "error", size: int = CHUNK) -> Iterator[Chunk]:
        """The pairs, at most `size` at once.

        Raises:
            NmtError: the files differ in their number of lines or have none, are not UTF-8
                (unless that is to be replaced), or end in the middle of a compressed stream.
        """
        first = 1
        sources, targets = _blocks(self.source, size), _blocks(self.target, size)
        ended: list[bytes] = []
        for source, target in zip_longest(sources, targets, fillvalue=ended):
            if len(source) != len(target):
                raise NmtError(
                    f"{self.source} has {first - 1 + len(source) + sum(map(len, sources))} lines, "
                    f"but {self.target} has {first - 1 + len(target) + sum(map(len, targets))}; "
                    "line n of one must be the translation of line n of the other"
                )
            yield Chunk(
                _decode(source, self.source, first, on_invalid_utf8),
                _decode(target, self.target, first, on_invalid_utf8),
                first,
            )
            first += len(source)
        if first == 1:
            raise NmtError(f"{self.source} and {self.target} are empty; give files with sentences")


def judge(
    source: npt.NDArray[np.int64], target: npt.NDArray[np.int64], cleaning: Cleaning
) -> npt.NDArray[np.intp]:
    """The :class:`Verdict` on pairs of these lengths [n], EOS included; the first that applies."""
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    ratio = np.inf if cleaning.max_length_ratio is None else cleaning.max_length_ratio
    applies = {
        Verdict.EMPTY: shorter == 1,
        Verdict.TOO_SHORT: shorter < cleaning.min_tokens_per_sentence,
        Verdict.TOO_LONG: longer > cleaning.max_tokens_per_sentence,
        Verdict.UNEQUAL: longer > ratio * shorter,
    }
    return np.select(list(applies.values()), list(applies), default=Verdict.KEPT)


def _find(name: str) -> Path:
    candidates = Path(name), Path(f"{name}.gz")
    for path in candidates:
        if path.is_file():
            return path
    raise NmtError(f"no such file: neither {candidates[0]} nor {candidates[1]}")


def _blocks(path: Path, size: int) -> Iterator[list[bytes]]:
    """The lines of a file, `size` at once, each with its line feed (but perhaps the last)."""
    with _open(path) as file:
        try:
            while block := list(islice(file, size)):
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise NmtError(
                f"{path}: the gzip file is truncated or damaged; fetch or compress it again"
            ) from None


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        # GzipFile by itself reads lines in Python, several times more slowly.
        return io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb")), 1 << 18)
    return path.open("rb")


def _decode(block: list[bytes], path: Path, first: int, on_invalid_utf8: str) -> list[str]:
    raw = b"".join(block)
    try:
        text = raw.decode("utf-8", "replace" if on_invalid_utf8 == "replace" else "strict")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        raise NmtError(
            f"{path}: line {line} is not UTF-8; mend it or set on_invalid_utf8 to replace"
        ) from None
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return lines

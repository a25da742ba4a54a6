"""Read parallel text line by line, in bounded memory, from plain or compressed files.

Only a line feed ends a line: U+2028, a lone carriage return or a NUL never does. So line 7 here is
line 7 for every other tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from nmt.errors import NmtError
from nmt.io.lines import COMPRESSED, OnInvalidUtf8, decode, decompressed, named_damage

CHUNK = 10_000
"""Lines that are read, encoded and written at once."""

STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A training corpus, with its weight and the largest number of pairs to take."""

    path: str = ""
    """Prefix or file, as in the key ``train``."""

    weight: float = 1.0
    """How often each pair is in the dataset: 2 for twice, 0.5 for a random half of the pairs."""

    max_pairs: int | None = None
    """Largest number of pairs to take; of more pairs, a random sample is taken."""

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"weight must be more than 0, not {self.weight}")
        if self.max_pairs is not None and self.max_pairs < 1:
            raise ValueError(f"max_pairs must be at least 1, not {self.max_pairs}")


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of one bitext; `first` is the line number of the first pair, from 1."""

    source: list[str]
    target: list[str]
    first: int


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a bitext as bytes; a worker process decodes them."""

    bitext: Bitext
    first: int
    """Line number of the first line, from 1."""
    lines: int
    source: bytes
    target: bytes
    """Empty if `source` holds both columns."""
    position: int
    """Bytes of the source's file, compressed as the file is, read so far."""
    corpus: int = 0
    """Index of the bitext among the training corpora."""

    def decode(self, on_invalid_utf8: OnInvalidUtf8 = "error") -> Chunk:
        """Return the pairs as text.

        Raises:
            NmtError: bytes are not UTF-8 (unless replaced), or a row has not two columns.
        """
        names = self.bitext.names
        source = decode(self.source, names[0], self.first, on_invalid_utf8)
        if self.bitext.target is not None:
            target = decode(self.target, names[1], self.first, on_invalid_utf8)
            return Chunk(source, target, self.first)
        rows = [line.split("\t") for line in source]
        for number, row in enumerate(rows, self.first):
            if len(row) != 2:
                raise NmtError(
                    f"{names[0]}: line {number} has {len(row)} columns instead of 2; "
                    "write source, one tab and target on each line"
                )
        return Chunk([row[0] for row in rows], [row[1] for row in rows], self.first)


@dataclass(frozen=True)
class Bitext:
    """Two files whose lines are translations of each other, or one file with two columns."""

    source: Path
    target: Path | None
    """None if `source` holds two columns, separated by a tab."""
    is_stdin: bool = False
    """Whether `source` is a copy of the standard input."""

    @classmethod
    def find(cls, path: str, source_lang: str, target_lang: str) -> Bitext:
        """Return the bitext of the files ``PATH.LANG``, or of the file PATH if PATH ends in .tsv.

        Each file may have .gz, .xz or .zst appended to its name.

        Raises:
            NmtError: a file is missing, or PATH is the file of one language.
        """
        if ".tsv" in Path(path).suffixes[-2:]:
            return cls(_find(path), None)
        try:
            return cls(_find(f"{path}.{source_lang}"), _find(f"{path}.{target_lang}"))
        except NmtError:
            _refuse_one_side(path, (source_lang, target_lang))
            raise

    def __str__(self) -> str:
        return " and ".join(self.names)

    @property
    def files(self) -> list[Path]:
        """The files that hold the text."""
        return [self.source] if self.target is None else [self.source, self.target]

    @property
    def names(self) -> list[str]:
        """The names of the files in messages."""
        return ["stdin"] if self.is_stdin else [str(file) for file in self.files]

    def chunks(
        self, on_invalid_utf8: OnInvalidUtf8 = "error", size: int = CHUNK
    ) -> Iterator[Chunk]:
        """Yield the pairs, at most `size` at once.

        Raises:
            NmtError: the files differ in their number of lines or have none, are not UTF-8
                (unless such bytes are replaced), or end in the middle of a compressed stream.
        """
        for block in self.blocks(size):
            yield block.decode(on_invalid_utf8)

    def blocks(self, size: int = CHUNK, skip: int = 0) -> Iterator[Block]:
        """Yield the lines after the first `skip`, at most `size` at once.

        Raises:
            NmtError: as :meth:`chunks`.
        """
        first = 1 + skip
        for (source, position), (target, _) in self._columns(size, skip):
            yield Block(self, first, len(source), b"".join(source), b"".join(target), position)
            first += len(source)
        if first == 1:
            raise NmtError(f"{self}: empty; give files with sentences")

    def _columns(self, size: int, skip: int) -> Iterator[tuple[_Lines, _Lines]]:
        """Yield equally many lines of both sides; the target has none if `source` holds both."""
        sources, none = _blocks(self.source, size, skip), _Lines([], 0)
        if self.target is None:
            yield from ((lines, none) for lines in sources)
            return
        targets, read = _blocks(self.target, size, skip), skip
        for source, target in zip_longest(sources, targets, fillvalue=none):
            if len(source.lines) != len(target.lines):
                counts = [
                    read + len(side.lines) + sum(len(block.lines) for block in rest)
                    for side, rest in ((source, sources), (target, targets))
                ]
                raise NmtError(
                    f"{self.source} has {counts[0]} lines, but {self.target} has {counts[1]}; "
                    "line n of one must be the translation of line n of the other"
                )
            yield source, target
            read += len(source.lines)


class _Lines(NamedTuple):
    """Lines of a file with their line feeds, and the bytes of the file read so far."""

    lines: list[bytes]
    position: int


def _find(name: str) -> Path:
    for suffix in ("", *COMPRESSED):
        if (path := Path(name + suffix)).is_file():
            return path
    raise NmtError(f"no such file: {name}, nor the same with .gz, .xz or .zst behind it")


def _refuse_one_side(path: str, languages: tuple[str, str]) -> None:
    """Raise an NmtError if the path is a file of one language instead of a prefix."""
    for end in (f".{language}{suffix}" for language in languages for suffix in ("", *COMPRESSED)):
        if path.endswith(end) and Path(path).is_file():
            raise NmtError(
                f"{path}: a file of one language; give the prefix: {path.removesuffix(end)}"
            ) from None


def _blocks(path: Path, size: int, skip: int) -> Iterator[_Lines]:
    """Yield the lines of a file after the first `skip`, `size` at once, with their line feeds."""
    with path.open("rb") as file, named_damage(path):
        stream = decompressed(file, path)
        for _ in islice(stream, skip):
            pass
        while block := list(islice(stream, size)):
            yield _Lines(block, file.tell())

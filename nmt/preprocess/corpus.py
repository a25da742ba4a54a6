"""Read parallel text line by line, in bounded memory, from plain or compressed files.

Only a line feed ends a line: U+2028, a lone carriage return or a NUL never does. So line 7 here is
line 7 for every other tool.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from nmt.data.directions import Direction
from nmt.data.vocabulary import SPECIAL_PIECES
from nmt.errors import NmtError
from nmt.io.lines import (
    COMPRESSED,
    OnInvalidUtf8,
    decode,
    decompressed,
    lines_of,
    named_damage,
    refuse_other_text,
)
from nmt.preprocess.annotations import DOCUMENT_IDS, Annotation, find

CHUNK = 10_000
"""Lines that are read, encoded and written at once."""

STDIN = "-"

LARGEST_WEIGHT = 1_000_000
"""Largest weight of a corpus."""

REPLACE = "--set preprocess.on_invalid_utf8=replace"
"""Option that replaces invalid UTF-8."""


@dataclass(frozen=True, kw_only=True)
class ParallelText:
    """Parallel text and its languages."""

    path: str
    """Prefix or file, as in the key ``train``."""

    source_lang: str | None = None
    """Language to translate from; None for the language of the section."""

    target_lang: str | None = None
    """Language to translate into; None for the language of the section."""

    @property
    def direction(self) -> Direction:
        """The languages; both must be set."""
        return self.source_lang or "", self.target_lang or ""


@dataclass(frozen=True, kw_only=True)
class Corpus(ParallelText):
    """A training corpus, with its weight and the largest number of pairs to take."""

    weight: float = 1.0
    """How often each pair is in the dataset: 2 for twice, 0.5 for a random half of the pairs."""

    max_pairs: int | None = None
    """Largest number of pairs to take; a larger corpus is sampled at random."""

    name: str | None = None
    """Name by which `train.stages` chooses the corpus; several corpora may share a name."""

    tag: str | None = None
    """Name of the tag before each source, such as "bt" for back-translated text; None for no
    tag."""

    def __post_init__(self) -> None:
        if not 0 < self.weight <= LARGEST_WEIGHT:
            raise ValueError(
                f"weight must be more than 0 and at most {LARGEST_WEIGHT:,}, not {self.weight}"
            )
        if self.max_pairs is not None and self.max_pairs < 1:
            raise ValueError(f"max_pairs must be at least 1, not {self.max_pairs}")
        if self.tag is not None and not self.tag.isidentifier():
            raise ValueError(f"tag must be a name, such as bt, not {self.tag!r}")
        if self.tag is not None and f"<{self.tag}>" in SPECIAL_PIECES:
            raise ValueError(
                f"tag {self.tag}: <{self.tag}> is a special piece; choose another name"
            )


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of one bitext; `first` is the line number of the first pair, from 1."""

    source: list[str]
    target: list[str]
    first: int
    text_names: str = ""
    """Names of the files of the text."""
    annotations: Mapping[Annotation, list[str]] = field(default_factory=dict)
    """Annotations of the pairs, if the bitext has any."""
    names: Mapping[Annotation, str] = field(default_factory=dict)
    """Names of the files of the annotations."""


@dataclass(frozen=True)
class TextBlock:
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
    annotation_lines: tuple[bytes, ...] = ()
    """Lines of the files of annotations; none if `source` holds them in its last columns."""
    corpus: int = 0
    """Index of the bitext among the training corpora."""

    def shard(self, shards: int) -> int:
        """Return the shard, from 1, that counts the lines of the block, and holds its documents."""
        # Blocks that end with documents have somewhat fewer lines.
        # By the number of the block, so that each shard has a similar part of every corpus.
        return (round((self.first - 1) / CHUNK) + self.corpus) % shards + 1

    def decode(self, on_invalid_utf8: OnInvalidUtf8 | None = "error") -> Chunk:
        """Return the pairs as text; see :class:`nmt.io.lines.Lines` for the argument.

        Raises:
            NmtError: bytes are not UTF-8 (unless replaced), or a row has too few or too many
                columns.
        """
        bitext, first = self.bitext, self.first
        source = decode(self.source, bitext.names[0], first, on_invalid_utf8, REPLACE)
        names = [str(path) for path in bitext.annotation_files]
        if bitext.target is not None:
            target = decode(self.target, bitext.names[1], first, on_invalid_utf8, REPLACE)
            files = zip(self.annotation_lines, names, strict=True)
            others = [decode(lines, name, first, None) for lines, name in files]
        else:
            source, target, *others = self._columns(source)
            names = bitext.names * len(others)
        kinds = bitext.annotations
        return Chunk(
            source,
            target,
            first,
            " and ".join(bitext.names[:2]),
            dict(zip(kinds, others, strict=True)),
            dict(zip(kinds, names, strict=True)),
        )

    def _columns(self, rows: list[str]) -> list[list[str]]:
        """Return the columns of rows with tabs."""
        columns = ["source", "target", *(kind.column for kind in self.bitext.annotations)]
        count = len(columns)
        fields = ", one tab and ".join(columns)
        cells = [row.split("\t") for row in rows]
        for number, row in enumerate(cells, self.first):
            if len(row) != count:
                has = f"{len(row)} columns" if len(row) > 1 else "1 column"
                raise NmtError(
                    f"{self.bitext.names[0]}: line {number} has {has} instead of {count}; "
                    f"write {fields} on each line"
                )
        return [[row[at] for row in cells] for at in range(count)]


@dataclass(frozen=True)
class Bitext:
    """Two files whose lines are translations of each other, or one file with two columns.

    Annotations are in further files, or in further columns.
    """

    source: Path
    target: Path | None
    """None if `source` holds all columns, separated by tabs."""
    is_stdin: bool = False
    """Whether `source` is a copy of the standard input."""
    annotations: tuple[Annotation, ...] = ()
    """Annotations of the pairs, in the order of files or columns."""
    annotation_files: tuple[Path, ...] = ()
    """Files of the annotations, one line for each pair; none if `source` holds them."""
    direction: Direction = ("", "")
    """Source and target language."""
    has_documents: bool = False
    """Whether blank lines or ids divide the text into documents, so that blocks end where documents
    end."""

    @classmethod
    def find(
        cls,
        path: str,
        source_lang: str,
        target_lang: str,
        annotations: tuple[Annotation, ...] = (),
        has_documents: bool = False,
    ) -> Bitext:
        """Return the bitext of the files ``PATH.LANG``, or of the file PATH if PATH ends in .tsv.

        Each file may have .gz, .xz or .zst appended to its name. Annotations are in files such as
        PATH.align, or in the last columns of the .tsv, in their order.

        Raises:
            NmtError: a file is missing, or PATH is the file of one language.
        """
        direction = (source_lang, target_lang)
        make = partial(
            cls, annotations=annotations, direction=direction, has_documents=has_documents
        )
        if _without_compression(path).endswith(".tsv"):
            return make(find(path), None)
        try:
            sides = find(f"{path}.{source_lang}"), find(f"{path}.{target_lang}")
        except NmtError:
            _refuse_one_side(path, direction)
            raise
        return make(*sides, annotation_files=tuple(kind.find(path) for kind in annotations))

    def __str__(self) -> str:
        return " and ".join(self.names)

    @property
    def files(self) -> list[Path]:
        """The files that hold the text and its annotations."""
        paths = (self.source, self.target, *self.annotation_files)
        return [path for path in paths if path is not None]

    @property
    def names(self) -> list[str]:
        """The names of the files in messages."""
        return ["stdin"] if self.is_stdin else [str(file) for file in self.files]

    def chunks(
        self, on_invalid_utf8: OnInvalidUtf8 | None = "error", size: int = CHUNK
    ) -> Iterator[Chunk]:
        """Yield the pairs, at most `size` at once.

        Args:
            on_invalid_utf8: see :class:`nmt.io.lines.Lines`; without it there is no setting to name
                in the message.
            size: number of pairs.

        Raises:
            NmtError: the files differ in their number of lines or have none, are not UTF-8
                (unless such bytes are replaced), or end in the middle of a compressed stream.
        """
        for block in self.blocks(size):
            yield block.decode(on_invalid_utf8)

    def blocks(self, size: int = CHUNK, skip: int = 0) -> Iterator[TextBlock]:
        """Yield the lines after the first `skip`, at most `size` at once.

        A document is in one block, unless it has more than `size` lines.

        Raises:
            NmtError: as :meth:`chunks`.
        """
        first = 1 + skip
        columns = self._columns(size, skip)
        for blocks in self._by_documents(columns, size) if self.has_documents else columns:
            # Bytes, not text: workers decode on other cores.
            source, *others = (b"".join(block.lines) for block in blocks)
            target, *annotation_lines = others or [b""]
            lines, position = blocks[0]
            yield TextBlock(
                self, first, len(lines), source, target, position, tuple(annotation_lines)
            )
            first += len(lines)
        if first == 1:
            raise NmtError(f"{self}: empty; give files with sentences")

    def _by_documents(
        self, columns: Iterator[tuple[_Lines, ...]], size: int
    ) -> Iterator[tuple[_Lines, ...]]:
        """Yield the same lines so that a block ends where a document does.

        The end of a block depends on the lines from the block's first line on, never on earlier
        lines.
        """
        waiting: list[list[bytes]] = [[] for _ in self.files]
        position, has_ids = 0, DOCUMENT_IDS in self.annotations
        for blocks in columns:
            position = blocks[0].position
            waiting = [lines + block.lines for lines, block in zip(waiting, blocks, strict=True)]
            while len(waiting[0]) >= size:
                # Ids of documents are the last annotation, and so the last file or column.
                count = last_end(waiting[-1 if has_ids else 0], size, has_ids)
                yield tuple(_Lines(lines[:count], position) for lines in waiting)
                waiting = [lines[count:] for lines in waiting]
        if waiting[0]:
            yield tuple(_Lines(lines, position) for lines in waiting)

    def _columns(self, size: int, skip: int) -> Iterator[tuple[_Lines, ...]]:
        """Yield equally many lines of each file."""
        read = skip
        streams = [_blocks(file, size, skip) for file in self.files]
        # zip would end with the shortest file, and hide that lines are missing.
        for blocks in zip_longest(*streams, fillvalue=_Lines([], 0)):
            if not read:
                for block, name in zip(blocks, self.names, strict=True):
                    _refuse_carriage_returns(b"".join(block.lines[:1]), name)
            if len({len(block.lines) for block in blocks}) > 1:
                if not read:  # UTF-16 has other bytes of line feeds, too
                    for block, name in zip(blocks, self.names, strict=True):
                        refuse_other_text(b"".join(block.lines[:1]), name)
                # Read to the end, because the message says how many lines each file has.
                counts = [
                    read + len(block.lines) + sum(len(later.lines) for later in rest)
                    for block, rest in zip(blocks, streams, strict=True)
                ]
                raise self._unequal(counts)
            yield blocks
            read += len(blocks[0].lines)

    def _unequal(self, counts: list[int]) -> NmtError:
        """Return the error for files with these numbers of lines."""
        other = next(at for at, count in enumerate(counts) if count != counts[0])
        remedy = "line n of one must be the translation of line n of the other"
        if other > 1:
            remedy = f"line n must hold {self.annotations[other - 2].line}"
        return NmtError(
            f"{self.source} has {counts[0]} lines, but {self.files[other]} has {counts[other]}; "
            f"{remedy}"
        )


class _Lines(NamedTuple):
    """Lines of a file with their line feeds, and the bytes of the file read so far."""

    lines: list[bytes]
    position: int


def _refuse_one_side(path: str, languages: tuple[str, str]) -> None:
    """Raise an NmtError if the path is a file of one language instead of a prefix."""
    plain = _without_compression(path)
    is_file = any(Path(f"{plain}{suffix}").is_file() for suffix in ("", *COMPRESSED))
    for end in (f".{language}" for language in languages):
        if is_file and plain.endswith(end):
            raise NmtError(
                f"{path}: a file of one language; give the prefix: {plain.removesuffix(end)}"
            ) from None


def _without_compression(name: str) -> str:
    """Return the name of a file without the suffix of its compression."""
    suffix = Path(name).suffix
    return name.removesuffix(suffix) if suffix in COMPRESSED else name


def _refuse_carriage_returns(line: bytes, name: str) -> None:
    """Raise an NmtError if a file's first line is all of it, and holds carriage returns."""
    if not line.endswith(b"\n") and b"\r" in line[:-1]:
        raise NmtError(
            f"{name}: has carriage returns, but no line feed to end a line; convert it with "
            "tr '\\r' '\\n'"
        )


def _blocks(path: Path, size: int, skip: int) -> Iterator[_Lines]:
    """Yield the lines of a file after the first `skip`, `size` at once, with their line feeds."""
    with path.open("rb") as file, named_damage(path):
        stream = lines_of(decompressed(file, path), str(path))
        # A compressed file cannot be entered in the middle.
        for _ in islice(stream, skip):
            pass
        while block := list(islice(stream, size)):
            # The position in the compressed file, whose bytes the progress bar counts.
            yield _Lines(block, file.tell())


def watched(doing: str, bitexts: list[Bitext], done: Sequence[int] = ()) -> Iterator[TextBlock]:
    """Yield the blocks of all bitexts after the `done` lines of each, with a progress bar.

    The bar is shown on a terminal only. It counts bytes on disk, because the number of pairs is
    unknown before the end.
    """
    total = sum(bitext.source.stat().st_size for bitext in bitexts)
    finished, pairs, began = 0, 0, time.monotonic()
    unread = [0] * (len(bitexts) - len(done))
    # disable=None shows the bar at a terminal alone.
    with tqdm(desc=doing, total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        for number, (bitext, skip) in enumerate(zip(bitexts, [*done, *unread], strict=True)):
            for block in bitext.blocks(skip=skip):
                yield replace(block, corpus=number)
                pairs += block.lines
                speed = pairs / (time.monotonic() - began)
                bar.set_postfix_str(f"{speed:,.0f} pairs/s", refresh=False)
                bar.update(finished + block.position - bar.n)
            finished += bitext.source.stat().st_size


def last_end(lines: Sequence[bytes], most: int, has_ids: bool) -> int:
    """Return the number of lines, at most `most`, after which a document ends; `most` if none ends.

    Args:
        lines: lines of a file, at least `most`.
        most: number of lines.
        has_ids: whether the last column of the lines has ids of documents. Otherwise a document
            ends where a line is blank and the next line is not, or the other way round.
    """
    mark = _id if has_ids else _is_blank
    # From the end: the longest block that does not tear a document.
    for count in range(most - 1, 0, -1):
        if mark(lines[count]) != mark(lines[count - 1]):
            return count
    return most


def _id(line: bytes) -> bytes:
    return line.rpartition(b"\t")[2].strip()


def _is_blank(line: bytes) -> bool:
    return not line.decode(errors="replace").strip()

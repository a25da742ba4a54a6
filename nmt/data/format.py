"""The dataset on disk: token ids, offsets, held-out text, subword models and a manifest.

Arrays are raw little-endian numbers that are mapped into memory, so opening a dataset costs the
same for a thousand pairs as for a hundred million. ``docs/formats.md`` describes every file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt import files
from nmt.errors import NmtError
from nmt.registry import unknown

VERSION = 2
"""Of the format; a dataset of another one is refused."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids, the same in every vocabulary."""

MANIFEST = "manifest.json"
OFFSET_TYPE = "<i8"
_SHARD = re.compile(r"shard-\d+-of-(\d+)")

Side = Literal["source", "target"]
Ids = npt.NDArray[np.integer[Any]]
Lengths = npt.NDArray[np.integer[Any]]


def reasons(dropped: Mapping[str, int]) -> str:
    """Return why pairs were dropped, such as "3 empty, 1 too long", or "nothing"."""
    return (
        ", ".join(f"{n:,} {why.replace('_', ' ')}" for why, n in dropped.items() if n) or "nothing"
    )


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """What one split holds, and what cleaning took from it."""

    pairs: int
    source_tokens: int
    """EOS included, as in every count of tokens."""
    target_tokens: int
    source_unknown: int
    """How many of the tokens are UNK."""
    target_unknown: int
    dropped: dict[str, int]
    """Reason to number of pairs; empty for held-out splits, of which every pair is kept."""
    rewritten: dict[str, int]
    """Cleaning step to number of lines that it changed."""
    examples: dict[str, list[list[str]]]
    """The first few of what was dropped (source and target) or rewritten (before and after)."""

    def why_dropped(self) -> str:
        """The reasons that occurred, such as "3 empty, 1 too long", or "nothing"."""
        return reasons(self.dropped)

    def __add__(self, other: SplitCounts) -> SplitCounts:
        """The counts of both together, with the examples of the first."""
        values = {}
        for name, one in vars(self).items():
            two = getattr(other, name)
            if isinstance(one, int):
                values[name] = one + two
            elif name == "examples":
                values[name] = two | one
            else:
                values[name] = {key: one.get(key, 0) + two.get(key, 0) for key in {**one, **two}}
        return SplitCounts(**values)


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """By which a file is known again."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> FileFacts:
        """The facts of a file as it is now."""
        return cls(bytes=file.stat().st_size, sha256=files.sha256(file))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a dataset is and how it was made: the content of ``manifest.json``."""

    version: int
    """Of the format."""
    fingerprint: str
    """A hash of all checksums: equal for equal data, wherever and whenever they were made."""
    source_lang: str
    target_lang: str
    source_vocabulary: int
    """Number of source token ids, special ids included."""
    target_vocabulary: int
    shared_vocabulary: bool
    """Whether the two vocabularies are one."""
    source_dtype: str
    """Of the token arrays, in numpy's notation: ``<u2`` or ``<i4``."""
    target_dtype: str
    splits: dict[str, SplitCounts]
    files: dict[str, FileFacts]
    """Every other file of the directory."""
    recipe: dict[str, Any]
    """The ``preprocess`` section that made the data, complete."""
    shard: str | None = None
    """``I/N`` where the training split is the I-th of N parts, else None."""

    def language(self, side: Side) -> str:
        """The language of a side, as it appears in file names."""
        return self.source_lang if side == "source" else self.target_lang

    def dtype(self, side: Side) -> str:
        """The type of a side's token arrays."""
        return self.source_dtype if side == "source" else self.target_dtype

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest of the dataset at `path`; an :class:`NmtError` where there is none."""
        file = path / MANIFEST
        try:
            values = json.loads(file.read_bytes())
            version = values["version"]
            if version != VERSION:
                raise NmtError(
                    f"{path}: a dataset of format {version}, but this nmt reads format {VERSION}; "
                    "make it again with `nmt preprocess`"
                )
            values["splits"] = {name: SplitCounts(**it) for name, it in values["splits"].items()}
            values["files"] = {name: FileFacts(**it) for name, it in values["files"].items()}
            return cls(**values)
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path}: not a dataset (no {MANIFEST}); make one with `nmt preprocess`"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise NmtError(
                f"{file}: damaged; make the dataset again with `nmt preprocess`"
            ) from None


class Dataset:
    """A dataset, opened for reading."""

    def __init__(self, path: Path, manifest: Manifest, parts: Mapping[Path, Manifest]) -> None:
        self.path = path
        self.manifest = manifest
        self._parts = dict(parts)

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """The dataset at `path`, which may be in shards, in constant time and memory.

        Raises:
            NmtError: there is none, it is of another format, a file is missing or of another
                size than when it was written, or shards are missing or do not belong together.
        """
        parts = {part: Manifest.read(part) for part in shards_of(path) or [path]}
        for part, manifest in parts.items():
            for name, facts in manifest.files.items():
                file = part / name
                if not file.is_file():
                    raise NmtError(f"{file}: missing; make the dataset again with `nmt preprocess`")
                if (size := file.stat().st_size) != facts.bytes:
                    raise NmtError(
                        f"{file}: {size} bytes instead of {facts.bytes}; "
                        "make the dataset again with `nmt preprocess`"
                    )
        return cls(path, _united(parts), parts)

    @property
    def subwords(self) -> Path:
        """The directory with the subword models."""
        return next(iter(self._parts))

    def has_split(self, name: str) -> bool:
        """Whether the dataset holds that split."""
        return name in self.manifest.splits

    def split(self, name: str) -> Split:
        """The split of that name: ``train``, ``valid`` or ``test``."""
        if not self.has_split(name):
            raise NmtError(f"{self.path}: {unknown('split', name, self.manifest.splits)}")
        parts = list(self._parts) if name == "train" else [self.subwords]
        return Split(parts, name, self.manifest)

    def verify(self) -> None:
        """Reads every file; one that is not as it was written is an :class:`NmtError`."""
        for part, manifest in self._parts.items():
            for name, facts in manifest.files.items():
                if FileFacts.of(part / name) != facts:
                    raise NmtError(
                        f"{part / name}: the content has changed since it was written; "
                        "make the dataset again with `nmt preprocess`"
                    )


def shard_directory(path: Path, shard: int, shards: int) -> Path:
    """Where one of the parts of a dataset is that several machines make."""
    return path / f"shard-{shard}-of-{shards}"


def shards_of(path: Path) -> list[Path]:
    """The shards of a dataset in their order, none where it is in one piece.

    Raises:
        NmtError: some are missing, or they are of several sets.
    """
    found = [match for it in path.glob("shard-*") if (match := _SHARD.fullmatch(it.name))]
    if not found:
        return []
    count = int(found[0][1])
    shards = [shard_directory(path, number, count) for number in range(1, count + 1)]
    if len({match[1] for match in found}) > 1:
        raise NmtError(f"{path}: shards of several sets; remove those of the older set")
    for number, shard in enumerate(shards, 1):
        if not shard.is_dir():
            raise NmtError(
                f"{shard}: missing; make it with `nmt preprocess --shard {number}/{count}`"
            )
    return shards


def _united(parts: Mapping[Path, Manifest]) -> Manifest:
    """What several shards are together."""
    (place, first), *others = parts.items()
    if not others:
        return first
    counts = first.splits["train"]
    for other, manifest in others:
        same_files = all(
            manifest.files.get(name) == facts
            for name, facts in first.files.items()
            if not name.startswith("train.")
        )
        if manifest.recipe != first.recipe or not same_files:
            raise NmtError(
                f"{other}: made of other text or with other settings than {place.name}; "
                "make both again with the same command"
            )
        counts += manifest.splits["train"]
    lines = "".join(f"{manifest.fingerprint}\n" for manifest in parts.values())
    return replace(
        first,
        fingerprint=hashlib.sha256(lines.encode("utf-8")).hexdigest(),
        splits={**first.splits, "train": counts},
        files={
            f"{part.name}/{name}": facts
            for part, manifest in parts.items()
            for name, facts in manifest.files.items()
        },
        shard=None,
    )


class Split:
    """The pairs of one split; the ids of a sentence end with EOS and have no BOS.

    All arrays are mapped from the files, read-only: processes share them, and handing a split to
    another process hands on where the files are.
    """

    def __init__(self, parts: Sequence[Path], name: str, manifest: Manifest) -> None:
        self.name = name
        self._made_of = (parts, name, manifest)
        self._stems = {side: f"{parts[0] / name}.{manifest.language(side)}" for side in _SIDES}
        self._columns = {
            side: [
                _Column(f"{part / name}.{manifest.language(side)}", manifest.dtype(side))
                for part in parts
            ]
            for side in _SIDES
        }
        sizes = [len(column) for column in self._columns["source"]]
        self._starts = np.cumsum([0, *sizes])

    def __reduce__(self) -> tuple[type[Split], tuple[Sequence[Path], str, Manifest]]:
        return Split, self._made_of

    def __len__(self) -> int:
        return int(self._starts[-1])

    def source(self, index: int) -> Ids:
        """Ids [S] of a source sentence, mapped from the file."""
        return self._sentence("source", index)

    def target(self, index: int) -> Ids:
        """Ids [T] of a target sentence, mapped from the file."""
        return self._sentence("target", index)

    @cached_property
    def source_lengths(self) -> Lengths:
        """Tokens of every source sentence [n] int32, EOS included."""
        return np.concatenate([column.lengths() for column in self._columns["source"]])

    @cached_property
    def target_lengths(self) -> Lengths:
        """Tokens of every target sentence [n] int32, EOS included."""
        return np.concatenate([column.lengths() for column in self._columns["target"]])

    def sampled_lengths(self, side: Side, most: int) -> Lengths:
        """Tokens of at most `most` sentences of a side, evenly spread over the split."""
        step = max(1, -(-len(self) // most))
        columns = self._columns[side]
        return np.concatenate([it.offsets[1::step] - it.offsets[:-1:step] for it in columns])

    def padded(self, side: Side, indices: Ids, pad: int = PAD) -> npt.NDArray[np.int64]:
        """The sentences at `indices` [B] as rows, filled with `pad` on the right: [B, L] int64."""
        part = np.searchsorted(self._starts, indices, "right") - 1  # [B]
        columns = self._columns[side]
        found = {
            it: columns[it].padded(indices[part == it] - self._starts[it], pad)
            for it in map(int, np.unique(part))
        }
        if len(found) == 1:
            return next(iter(found.values()))
        width = max((some.shape[1] for some in found.values()), default=0)
        rows = np.full((len(indices), width), pad, dtype=np.int64)
        for it, some in found.items():
            rows[part == it, : some.shape[1]] = some
        return rows

    def source_text(self) -> list[str]:
        """The source lines of a held-out split, as they were given."""
        return self._text("source")

    def reference_text(self) -> list[str]:
        """The target lines of a held-out split, as they were given."""
        return self._text("target")

    def _sentence(self, side: Side, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        part = int(np.searchsorted(self._starts, index, "right")) - 1
        return self._columns[side][part].sentence(index - int(self._starts[part]))

    def _text(self, side: Side) -> list[str]:
        file = Path(self._stems[side])
        if not file.exists():
            raise ValueError(f"the split {self.name!r} keeps no text, only held-out splits do")
        return file.read_bytes().decode("utf-8").split("\n")[:-1]


class _Column:
    """The sentences of one side in one pair of files; `stem` is their path without suffix."""

    def __init__(self, stem: str, dtype: str) -> None:
        self.tokens = _map(f"{stem}.tokens", dtype)
        self.offsets = _map(f"{stem}.offsets", OFFSET_TYPE)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sentence(self, index: int) -> Ids:
        start, end = self.offsets[index : index + 2]
        return self.tokens[start:end]

    def lengths(self) -> Lengths:
        # Cast before subtracting, so that nothing of 8 bytes a sentence is held: right modulo 2^32.
        return np.subtract(self.offsets[1:], self.offsets[:-1], dtype=np.int32, casting="unsafe")

    def padded(self, indices: Ids, pad: int) -> npt.NDArray[np.int64]:
        """Those sentences [B, L], filled up on the right with `pad`."""
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        columns = np.arange(lengths.max(initial=0))
        real = columns < lengths[:, None]  # [B, L]
        rows = np.full(real.shape, pad, dtype=np.int64)
        rows[real] = self.tokens[(starts[:, None] + columns)[real]]
        return rows


class Sentences(NamedTuple):
    """Consecutive sentences of one side, laid end to end as in the files."""

    tokens: Ids
    lengths: Lengths

    @classmethod
    def of(cls, ids: list[list[int]]) -> Sentences:
        """The sentences with these ids, each of which gets its EOS."""
        return cls.laid(ids).ended()

    @classmethod
    def laid(cls, ids: list[list[int]]) -> Sentences:
        """The sentences with these ids as they are."""
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = itertools.chain.from_iterable(ids)
        return cls(np.fromiter(flat, np.int32, int(lengths.sum())), lengths)

    def ended(self) -> Sentences:
        """The sentences, each with EOS behind it."""
        return Sentences(np.insert(self.tokens, np.cumsum(self.lengths), EOS), self.lengths + 1)

    def keep(self, copies: npt.NDArray[np.bool_ | np.int64]) -> Sentences:
        """Each sentence as often as `copies` [n] says: False or 0 leaves it out."""
        if (copies == 1).all():
            return self
        return self.take(np.repeat(np.arange(len(copies)), copies))

    def take(self, indices: Ids) -> Sentences:
        """The sentences at `indices` [m], in that order and as often as they are there."""
        lengths = self.lengths[indices]
        starts = (np.cumsum(self.lengths) - self.lengths)[indices]
        moves = starts - (np.cumsum(lengths) - lengths)  # from the place there to that here
        return Sentences(self.tokens[np.repeat(moves, lengths) + np.arange(lengths.sum())], lengths)


@contextmanager
def staging(path: Path, identity: str | None = None) -> Iterator[Path]:
    """A directory to fill; it becomes `path` when the block ends, and vanishes when it fails.

    A dataset that is already at `path` stays there until then.

    Args:
        path: of the dataset.
        identity: of what is made; what a killed process has left of the same is found again.

    Raises:
        NmtError: at once, where `path` cannot be written, holds something other than a dataset,
            or is being written by another process.
    """
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise NmtError(f"{path}: is a file; choose another output_dir")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise NmtError(
            f"{path}: is not empty and not a dataset; choose another output_dir or empty it"
        )
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(files.whole_directory(path, identity))
        except OSError as error:
            raise NmtError(f"{path}: cannot be written: {error.strerror}") from None
        yield directory


class DatasetWriter:
    """Fills a directory with a dataset, in bounded memory."""

    def __init__(
        self, directory: Path, languages: tuple[str, str], vocabularies: tuple[int, int]
    ) -> None:
        """Begins a dataset.

        Args:
            directory: where to write, see :func:`staging`. Files already in it, such as the
                subword models, become part of the dataset.
            languages: of the source and the target.
            vocabularies: number of token ids of the source and the target.
        """
        self.directory = directory
        self.languages = languages
        self.vocabularies = vocabularies
        source, target = ("<u2" if size <= 2**16 else "<i4" for size in vocabularies)
        self.dtypes = (source, target)
        self._splits: dict[str, SplitCounts] = {}

    @contextmanager
    def split(self, name: str) -> Iterator[SplitWriter]:
        """A writer to append the split's pairs to, until the block ends."""
        with ExitStack() as stack:
            sides = [
                _SideWriter(f"{self.directory / name}.{language}", dtype, stack)
                for language, dtype in zip(self.languages, self.dtypes, strict=True)
            ]
            writer = SplitWriter(sides[0], sides[1])
            yield writer
        self._splits[name] = writer.counts()

    def finish(
        self, *, shared_vocabulary: bool, recipe: Mapping[str, Any], shard: str | None = None
    ) -> Manifest:
        """Writes the manifest of every file that is in the directory.

        Where there is one, even after a crash of the machine, those files are whole.
        """
        made = sorted(path for path in self.directory.iterdir() if path.is_file())
        for file in made:
            files.sync(file)
        facts = {file.name: FileFacts.of(file) for file in made}
        manifest = Manifest(
            version=VERSION,
            fingerprint=_fingerprint(facts),
            source_lang=self.languages[0],
            target_lang=self.languages[1],
            source_vocabulary=self.vocabularies[0],
            target_vocabulary=self.vocabularies[1],
            shared_vocabulary=shared_vocabulary,
            source_dtype=self.dtypes[0],
            target_dtype=self.dtypes[1],
            splits=self._splits,
            files=facts,
            recipe=dict(recipe),
            shard=shard,
        )
        text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False)
        with files.whole_file(self.directory / MANIFEST) as partial:
            partial.write_text(text + "\n", encoding="utf-8")
        return manifest


class SplitWriter:
    """Appends pairs to one split."""

    def __init__(self, source: _SideWriter, target: _SideWriter) -> None:
        self._source = source
        self._target = target
        self.dropped: dict[str, int] = {}
        """What was left out, to be filled in; see :class:`SplitCounts` for these three."""
        self.rewritten: dict[str, int] = {}
        self.examples: dict[str, list[list[str]]] = {}

    def append(self, source: Sentences, target: Sentences) -> None:
        """Writes the pairs of as many source as target sentences."""
        if len(source.lengths) != len(target.lengths):
            raise ValueError(
                f"{len(source.lengths)} source, {len(target.lengths)} target sentences"
            )
        self._source.append(source)
        self._target.append(target)

    def append_text(self, source: list[str], target: list[str]) -> None:
        """Writes the lines that were given for held-out pairs."""
        self._source.append_text(source)
        self._target.append_text(target)

    def counts(self) -> SplitCounts:
        """What the split holds so far."""
        return SplitCounts(
            pairs=self._source.sentences,
            source_tokens=self._source.tokens,
            target_tokens=self._target.tokens,
            source_unknown=self._source.unknown,
            target_unknown=self._target.unknown,
            dropped=dict(self.dropped),
            rewritten=dict(self.rewritten),
            examples=dict(self.examples),
        )


class _SideWriter:
    """The files of one side of a split; `stem` is their path without suffix."""

    def __init__(self, stem: str, dtype: str, stack: ExitStack) -> None:
        self.sentences = self.tokens = self.unknown = 0
        self._stem = stem
        self._dtype = dtype
        self._stack = stack
        self._tokens = self._open(".tokens")
        self._offsets = self._open(".offsets")
        self._offsets.write(np.zeros(1, OFFSET_TYPE).tobytes())

    def append(self, sentences: Sentences) -> None:
        """Adds sentences at the end of this side."""
        self._tokens.write(sentences.tokens.astype(self._dtype).tobytes())
        ends = self.tokens + np.cumsum(sentences.lengths)
        self._offsets.write(ends.astype(OFFSET_TYPE).tobytes())
        self.sentences += len(sentences.lengths)
        self.tokens += len(sentences.tokens)
        self.unknown += int(np.count_nonzero(sentences.tokens == UNK))

    def append_text(self, lines: list[str]) -> None:
        self._text.write("".join(f"{line}\n" for line in lines).encode("utf-8"))

    @cached_property
    def _text(self) -> BinaryIO:
        return self._open("")

    def _open(self, suffix: str) -> BinaryIO:
        return self._stack.enter_context(open(self._stem + suffix, "wb"))


_SIDES: tuple[Side, Side] = ("source", "target")


def _map(file: str, dtype: str) -> Ids:
    if os.path.getsize(file) == 0:
        return np.empty(0, dtype)  # which cannot be mapped
    return np.asarray(np.memmap(file, dtype, "r"))


def _fingerprint(facts: Mapping[str, FileFacts]) -> str:
    lines = "".join(f"{it.sha256}  {name}\n" for name, it in sorted(facts.items()))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()

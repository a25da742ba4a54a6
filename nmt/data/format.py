"""The dataset on disk: token ids, offsets, held-out text, subword models and a manifest.

Arrays are raw little-endian numbers that are mapped into memory, so opening a dataset costs the
same for a thousand pairs as for a hundred million. ``docs/formats.md`` describes every file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt import files
from nmt.errors import NmtError
from nmt.registry import unknown

VERSION = 1
"""Of the format; a dataset of another one is refused."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids, the same in every vocabulary."""

MANIFEST = "manifest.json"
OFFSET_TYPE = "<i8"

Side = Literal["source", "target"]
Ids = npt.NDArray[np.integer[Any]]
Lengths = npt.NDArray[np.int64]


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

    def why_dropped(self) -> str:
        """The reasons that occurred, such as "3 empty, 1 too long", or "nothing"."""
        counts = [f"{n:,} {why.replace('_', ' ')}" for why, n in self.dropped.items() if n]
        return ", ".join(counts) or "nothing"


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

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """The dataset at `path`, in constant time and memory.

        Raises:
            NmtError: there is none, it is of another format, or a file is missing or of another
                size than when it was written.
        """
        manifest = Manifest.read(path)
        for name, facts in manifest.files.items():
            file = path / name
            if not file.is_file():
                raise NmtError(f"{file}: missing; make the dataset again with `nmt preprocess`")
            if (size := file.stat().st_size) != facts.bytes:
                raise NmtError(
                    f"{file}: {size} bytes instead of {facts.bytes}; "
                    "make the dataset again with `nmt preprocess`"
                )
        return cls(path, manifest)

    def has_split(self, name: str) -> bool:
        """Whether the dataset holds that split."""
        return name in self.manifest.splits

    def split(self, name: str) -> Split:
        """The split of that name: ``train``, ``valid`` or ``test``."""
        if not self.has_split(name):
            raise NmtError(f"{self.path}: {unknown('split', name, self.manifest.splits)}")
        return Split(self.path, name, self.manifest)

    def verify(self) -> None:
        """Reads every file; one that is not as it was written is an :class:`NmtError`."""
        for name, facts in self.manifest.files.items():
            if FileFacts.of(self.path / name) != facts:
                raise NmtError(
                    f"{self.path / name}: the content has changed since it was written; "
                    "make the dataset again with `nmt preprocess`"
                )


class Split:
    """The pairs of one split; the ids of a sentence end with EOS and have no BOS."""

    def __init__(self, path: Path, name: str, manifest: Manifest) -> None:
        self.name = name
        self._stems = {side: f"{path / name}.{manifest.language(side)}" for side in _SIDES}
        self._tokens = {
            side: _map(f"{stem}.tokens", manifest.dtype(side)) for side, stem in self._stems.items()
        }
        self._offsets = {
            side: _map(f"{stem}.offsets", OFFSET_TYPE) for side, stem in self._stems.items()
        }

    def __len__(self) -> int:
        return len(self._offsets["source"]) - 1

    def source(self, index: int) -> Ids:
        """Ids [S] of a source sentence, mapped from the file."""
        return self._sentence("source", index)

    def target(self, index: int) -> Ids:
        """Ids [T] of a target sentence, mapped from the file."""
        return self._sentence("target", index)

    @cached_property
    def source_lengths(self) -> Lengths:
        """Tokens of every source sentence [n] int64, EOS included."""
        return np.diff(self._offsets["source"])

    @cached_property
    def target_lengths(self) -> Lengths:
        """Tokens of every target sentence [n] int64, EOS included."""
        return np.diff(self._offsets["target"])

    def padded(self, side: Side, indices: Ids, pad: int = PAD) -> npt.NDArray[np.int64]:
        """The sentences at `indices` [B] as rows, filled with `pad` on the right: [B, L] int64."""
        starts = self._offsets[side][indices]
        lengths = self._offsets[side][indices + 1] - starts
        columns = np.arange(lengths.max(initial=0))
        real = columns < lengths[:, None]  # [B, L]
        rows = np.full(real.shape, pad, dtype=np.int64)
        rows[real] = self._tokens[side][(starts[:, None] + columns)[real]]
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
        start, end = self._offsets[side][index : index + 2]
        return self._tokens[side][start:end]

    def _text(self, side: Side) -> list[str]:
        file = Path(self._stems[side])
        if not file.exists():
            raise ValueError(f"the split {self.name!r} keeps no text, only held-out splits do")
        return file.read_bytes().decode("utf-8").split("\n")[:-1]


class Sentences(NamedTuple):
    """Consecutive sentences of one side, laid end to end as in the files."""

    tokens: Ids
    lengths: Lengths

    @classmethod
    def of(cls, ids: list[list[int]]) -> Sentences:
        """The sentences with these ids, each of which gets its EOS."""
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = itertools.chain.from_iterable(ids)
        tokens = np.fromiter(flat, np.int32, int(lengths.sum()))
        return cls(np.insert(tokens, np.cumsum(lengths), EOS), lengths + 1)

    def keep(self, chosen: npt.NDArray[np.bool_]) -> Sentences:
        """Only the sentences chosen [n]."""
        if chosen.all():
            return self
        return Sentences(self.tokens[np.repeat(chosen, self.lengths)], self.lengths[chosen])


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """A directory to fill; it becomes `path` when the block ends, and vanishes when it fails.

    A dataset that is already at `path` stays there until then.

    Raises:
        NmtError: at once, where `path` cannot be written or holds something other than a dataset.
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
            directory = stack.enter_context(files.whole_directory(path))
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
        self.dtypes = tuple("<u2" if size <= 2**16 else "<i4" for size in vocabularies)
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

    def finish(self, *, shared_vocabulary: bool, recipe: Mapping[str, Any]) -> Manifest:
        """Writes the manifest of everything that is in the directory."""
        facts = {file.name: FileFacts.of(file) for file in sorted(self.directory.iterdir())}
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
        )
        text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False)
        (self.directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
        return manifest


class SplitWriter:
    """Appends pairs to one split."""

    def __init__(self, source: _SideWriter, target: _SideWriter) -> None:
        self._source = source
        self._target = target
        self._dropped: dict[str, int] = {}

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

    def drop(self, reason: str, pairs: int) -> None:
        """Counts pairs that were left out."""
        self._dropped[reason] = self._dropped.get(reason, 0) + pairs

    def counts(self) -> SplitCounts:
        """What the split holds so far."""
        return SplitCounts(
            pairs=self._source.sentences,
            source_tokens=self._source.tokens,
            target_tokens=self._target.tokens,
            source_unknown=self._source.unknown,
            target_unknown=self._target.unknown,
            dropped=dict(self._dropped),
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

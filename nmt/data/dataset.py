"""Datasets, opened for reading in constant time, independent of the number of pairs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmt.data.columns import Column, MappedFile, Sentences
from nmt.data.corpora import CORPORA, CORPORA_FILE, indices_of
from nmt.data.links import LinkColumn
from nmt.data.manifest import (
    PAIR_NUMBERS,
    REMEDY,
    SIDES,
    Ids,
    Lengths,
    Manifest,
    Side,
    number_file,
)
from nmt.data.vocabulary import PAD
from nmt.errors import NmtError
from nmt.io import reading
from nmt.recipe.registry import unknown

_SHARD = re.compile(r"shard-\d+-of-(\d+)")


class Dataset:
    """A dataset, opened for reading."""

    def __init__(self, path: Path, manifest: Manifest, parts: Mapping[Path, Manifest]) -> None:
        self.path = path
        self.manifest = manifest
        self._parts = dict(parts)

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """Open the dataset at `path`, in one piece or in shards, in constant time and memory.

        Raises:
            NmtError: there is no dataset, its format is another one, a file is missing or has
                changed its size, or shards are missing or do not belong together.
        """
        parts = {part: Manifest.read(part) for part in shards_of(path) or [path]}
        for part, manifest in parts.items():
            for name, facts in manifest.files.items():
                reading.open_checked(part / name, facts, REMEDY).close()
        return cls(path, _united(parts), parts)

    @property
    def first_part(self) -> Path:
        """The directory with the subword models and the held-out splits."""
        return next(iter(self._parts))

    def read(self, name: str) -> bytes:
        """Return the content of a file of the first part, checked.

        Raises:
            NmtError: the dataset has no such file, or the file has changed.
        """
        facts = self._parts[self.first_part].files.get(name)
        if facts is None:
            raise NmtError(f"{self.path}: has no file {name}; {REMEDY}")
        return reading.read_checked(self.first_part / name, facts, REMEDY)

    def has_split(self, name: str) -> bool:
        """Whether the dataset holds the split `name`."""
        return name in self.manifest.splits

    def split(self, name: str) -> Split:
        """Return the split of this name: ``train``, ``valid`` or ``test``.

        Raises:
            NmtError: the dataset has no such split.
        """
        if not self.has_split(name):
            raise NmtError(f"{self.path}: {unknown('split', name, self.manifest.splits)}")
        first = self.first_part
        return Split(self._parts if name == "train" else {first: self._parts[first]}, name)

    def verify(self) -> None:
        """Read every file and compare checksums.

        Raises:
            NmtError: a file has changed since it was written.
        """
        for part, manifest in self._parts.items():
            for name, facts in manifest.files.items():
                reading.check(part / name, facts, REMEDY)


def shard_directory(path: Path, shard: int, shards: int) -> Path:
    """Return the directory of one shard, from 1, of a dataset that several machines make."""
    return path / f"shard-{shard}-of-{shards}"


def shards_of(path: Path) -> list[Path]:
    """Return the directories of the shards, in order; none for a dataset in one piece.

    Raises:
        NmtError: a shard is missing, or the shards belong to several sets.
    """
    matches = [match for file in path.glob("shard-*") if (match := _SHARD.fullmatch(file.name))]
    if not matches:
        return []
    count = int(matches[0][1])
    if len({match[1] for match in matches}) > 1:
        raise NmtError(f"{path}: shards of several sets; remove those of the older set")
    shards = []
    for number in range(1, count + 1):  # any count is safe: a missing shard ends the loop
        shards.append(shard_directory(path, number, count))
        if not shards[-1].is_dir():
            raise NmtError(
                f"{shards[-1]}: missing; make it with `nmt preprocess --shard {number}/{count}`"
            )
    return shards


def _united(parts: Mapping[Path, Manifest]) -> Manifest:
    """Merge the manifests of all shards.

    Raises:
        NmtError: the shards were made from other text or with other settings, or one is a copy of
            another.
    """
    (place, first), *others = parts.items()
    if not others:
        return first
    counts = first.splits["train"]
    made: set[str | None] = {first.shard}
    for other, manifest in others:
        if manifest.shard is not None and manifest.shard in made:
            raise NmtError(
                f"{other}: holds shard {manifest.shard}, which another directory holds, too; "
                "remove the copy, and make the missing shard with `nmt preprocess --shard`"
            )
        made.add(manifest.shard)
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

    All arrays are mapped read-only from the files, so processes share memory. Pickling a split for
    another process copies the paths of the files, not the arrays.
    """

    def __init__(self, parts: Mapping[Path, Manifest], name: str) -> None:
        self.name = name
        self._parts = dict(parts)
        self._columns = {
            side: [Column(part, manifest, name, side) for part, manifest in parts.items()]
            for side in SIDES
        }
        self._links = [
            LinkColumn(part, manifest, name)
            for part, manifest in parts.items()
            if manifest.has_links(name)
        ]
        self._numbers = {
            number: [
                MappedFile(part / file, manifest.files[file], dtype)
                for part, manifest in parts.items()
                if (file := number_file(name, number)) in manifest.files
            ]
            for number, dtype in PAIR_NUMBERS.items()
        }
        sizes = [len(column) for column in self._columns["source"]]
        self._starts = np.cumsum([0, *sizes])

    def __reduce__(self) -> tuple[type[Split], tuple[dict[Path, Manifest], str]]:
        return Split, (self._parts, self.name)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def source(self, index: int) -> Ids:
        """Return the ids [S] of a source sentence, mapped from the file."""
        return self._sentence("source", index)

    def target(self, index: int) -> Ids:
        """Return the ids [T] of a target sentence, mapped from the file."""
        return self._sentence("target", index)

    @property
    def has_links(self) -> bool:
        """Whether the pairs have word alignments."""
        return len(self._links) == len(self._parts)

    def links(self, indices: Ids) -> Sentences:
        """Return the word alignments of the pairs at `indices` [B], with :attr:`has_links`.

        Returns:
            For each pair the numbers of its links, source word and target word in turn.
        """
        part = np.searchsorted(self._starts, indices, "right") - 1  # [B]
        order = np.argsort(part, kind="stable")
        read = [
            self._links[number].of(indices[part == number] - self._starts[number])
            for number in map(int, np.unique(part))
        ]
        joined = Sentences(*map(np.concatenate, zip(*read, strict=True)))
        return joined.take(np.argsort(order))

    @cached_property
    def directions(self) -> Ids | None:
        """Number of the direction of every pair, [n]; None for a single direction."""
        files = self._numbers["directions"]
        return np.concatenate([file.array() for file in files]) if files else None

    @cached_property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """Weight of every pair in the loss, [n]; None if all weigh 1."""
        files = self._numbers["weights"]
        if not files:
            return None
        return np.concatenate([file.array() for file in files]).astype(np.float32, copy=False)

    @cached_property
    def corpora(self) -> dict[str, Ids]:
        """Indices of the training pairs of each corpus with a name.

        Raises:
            NmtError: the file of their names is damaged.
        """
        parts = []
        for part, manifest in self._parts.items():
            if self.name != "train" or CORPORA_FILE not in manifest.files:
                return {}
            path = part / CORPORA_FILE
            content = reading.read_checked(path, manifest.files[CORPORA_FILE], REMEDY)
            parts.append(CORPORA.parse(content, str(path)))
            if sum(parts[-1].pairs) != manifest.splits[self.name].pairs:
                raise NmtError(f"{path}: not all pairs are of a corpus; {REMEDY}")
        return indices_of(parts)

    @cached_property
    def source_lengths(self) -> Lengths:
        """Number of tokens of every source sentence, [n] int32, EOS included."""
        return np.concatenate([column.lengths() for column in self._columns["source"]])

    @cached_property
    def target_lengths(self) -> Lengths:
        """Number of tokens of every target sentence, [n] int32, EOS included."""
        return np.concatenate([column.lengths() for column in self._columns["target"]])

    def sampled_lengths(self, side: Side, most: int) -> Lengths:
        """Return the lengths in tokens of about `most` sentences, evenly spread over the split."""
        step = max(1, -(-len(self) // most))
        return np.concatenate([column.sampled_lengths(step) for column in self._columns[side]])

    def check(self) -> None:
        """Read and check all ids once, in bounded memory, before training.

        Raises:
            NmtError: the split holds no pair, or :meth:`Column.check` refuses a file.
        """
        if not len(self):
            raise NmtError(f"{next(iter(self._parts))}: {self.name} holds no pair; {REMEDY}")
        columns: Iterator[Column | LinkColumn] = chain(*self._columns.values(), self._links)
        for column in columns:
            column.check()
        for name, numbers in self._numbers.items():
            for file in numbers:
                with file.reader() as read:
                    values = read(len(file))
                if name == "weights" and not (np.isfinite(values) & (values >= 0)).all():
                    file.refuse("a weight is negative or not finite")

    def padded(self, side: Side, indices: Ids) -> npt.NDArray[np.int64]:
        """Return the sentences at `indices` [B] as rows [B, L] int64, padded with PAD."""
        part = np.searchsorted(self._starts, indices, "right") - 1  # [B]
        columns = self._columns[side]
        blocks = {
            number: columns[number].padded(indices[part == number] - self._starts[number])
            for number in map(int, np.unique(part))
        }
        if len(blocks) == 1:
            return next(iter(blocks.values()))
        width = max((block.shape[1] for block in blocks.values()), default=0)
        rows = np.full((len(indices), width), PAD, dtype=np.int64)
        for number, block in blocks.items():
            rows[part == number, : block.shape[1]] = block
        return rows

    def source_text(self) -> list[str]:
        """Return the original source lines of a held-out split."""
        return self._text("source")

    def reference_text(self) -> list[str]:
        """Return the original target lines of a held-out split."""
        return self._text("target")

    def _sentence(self, side: Side, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        part = int(np.searchsorted(self._starts, index, "right")) - 1
        return self._columns[side][part].sentence(index - int(self._starts[part]))

    def _text(self, side: Side) -> list[str]:
        part, manifest = next(iter(self._parts.items()))
        name = manifest.stem(self.name, side)
        if name not in manifest.files:
            raise ValueError(f"the split {self.name!r} keeps no text, only held-out splits do")
        content = reading.read_checked(part / name, manifest.files[name], REMEDY)
        try:
            lines = content.decode("utf-8").split("\n")[:-1]
        except UnicodeDecodeError:
            raise NmtError(f"{part / name}: not UTF-8; {REMEDY}") from None
        if len(lines) != len(self):
            raise NmtError(f"{part / name}: {len(lines)} lines for {len(self)} pairs; {REMEDY}")
        return lines

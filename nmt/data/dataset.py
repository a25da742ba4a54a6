"""Datasets, opened for reading in constant time: splits, corpora, statistics of lengths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmt.data.columns import Column, LinkColumn, MappedFile, RaggedArray
from nmt.data.manifest import PAIR_NUMBERS, REMEDY, SIDES, Ids, Lengths, Manifest, Side, number_file
from nmt.data.vocabulary import PAD
from nmt.errors import NmtError
from nmt.io import documents
from nmt.io.documents import DocumentFormat
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
            NmtError: there is no dataset, its format is unknown, a file is missing or has changed
                its size, or shards are missing or do not belong together.
        """
        parts = {part: Manifest.read(part) for part in shards_of(path) or [path]}
        for part, manifest in parts.items():
            # Only sizes are compared here, which takes constant time; `verify` reads the files.
            for name, facts in manifest.files.items():
                documents.open_checked(part / name, facts, REMEDY).close()
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
        return documents.read_checked(self.first_part / name, facts, REMEDY)

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
        # Held-out splits are the same in all shards.
        return Split(self._parts if name == "train" else {first: self._parts[first]}, name)

    def verify(self) -> None:
        """Read every file and compare checksums.

        Raises:
            NmtError: a file has changed since it was written.
        """
        for part, manifest in self._parts.items():
            for name, facts in manifest.files.items():
                documents.check(part / name, facts, REMEDY)


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
    # Mixed sets would train on some pairs twice.
    if len({match[1] for match in matches}) > 1:
        raise NmtError(f"{path}: shards of several sets; remove the shards of the older set")
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
        # Shards of other settings would have other ids for the same words.
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
        # Workers map the files themselves instead of copying a corpus through a pipe.
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

    def links(self, indices: Ids) -> RaggedArray:
        """Return the word alignments of the pairs at `indices` [B], with :attr:`has_links`.

        Returns:
            For each pair the numbers of its links, source word and target word in turn.
        """
        # "right" passes over empty shards, which begin where the next one begins.
        part = np.searchsorted(self._starts, indices, "right") - 1  # [B]
        # Read shard by shard, then put back into the order of the batch.
        order = np.argsort(part, kind="stable")
        read = [
            self._links[number].take(indices[part == number] - self._starts[number])
            for number in map(int, np.unique(part))
        ]
        joined = RaggedArray(*map(np.concatenate, zip(*read, strict=True)))
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
            content = documents.read_checked(path, manifest.files[CORPORA_FILE], REMEDY)
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

    def most_of(self, side: Side, ids: Sequence[int]) -> int:
        """Return the largest number of tokens of a sentence that are among some ids."""
        return max(column.most_of(ids) for column in self._columns[side])

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
        content = documents.read_checked(part / name, manifest.files[name], REMEDY)
        try:
            # Not splitlines, which would split a sentence at U+2028.
            lines = content.decode("utf-8").split("\n")[:-1]
        except UnicodeDecodeError:
            raise NmtError(f"{part / name}: not UTF-8; {REMEDY}") from None
        if len(lines) != len(self):
            raise NmtError(f"{part / name}: {len(lines)} lines for {len(self)} pairs; {REMEDY}")
        return lines


class Subset:
    """The pairs of a split at given indices [n]."""

    def __init__(self, split: Split, indices: Ids) -> None:
        self.split, self.indices = split, indices

    @classmethod
    def of_direction(cls, split: Split, number: int) -> Subset:
        """Return the pairs of a direction, given by its number in the dataset."""
        assert split.directions is not None
        return cls(split, np.flatnonzero(split.directions == number))

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def source_lengths(self) -> Lengths:
        """Number of tokens of every source sentence, EOS included."""
        return self.split.source_lengths[self.indices]

    @cached_property
    def target_lengths(self) -> Lengths:
        """Number of tokens of every target sentence, EOS included."""
        return self.split.target_lengths[self.indices]

    def padded(self, side: Side, indices: Ids) -> npt.NDArray[np.int64]:
        """Return the sentences at `indices` [B] of the subset as rows, padded with PAD."""
        return self.split.padded(side, self.indices[indices])

    def source_text(self) -> list[str]:
        """Return the original source lines of a held-out split."""
        lines = self.split.source_text()
        return [lines[index] for index in self.indices]

    def reference_text(self) -> list[str]:
        """Return the original target lines of a held-out split."""
        lines = self.split.reference_text()
        return [lines[index] for index in self.indices]


CORPORA_FILE = "train.corpora.json"
"""Name of the file in a dataset. A dataset whose corpora have no names has no such file."""


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """Content of ``train.corpora.json``.

    The pairs of a corpus follow each other in a dataset, so the number of pairs of each corpus is
    enough.
    """

    names: tuple[str | None, ...]
    """Name of each entry of `preprocess.train`, in order; None for an entry without a name."""
    pairs: tuple[int, ...]
    """Number of pairs of each entry in this dataset or shard."""

    def __post_init__(self) -> None:
        if len(self.names) != len(self.pairs) or min(self.pairs, default=-1) < 0:
            raise ValueError("pairs must be a number for each of names")


CORPORA = DocumentFormat(
    kind=Corpora,
    name="nmt-corpora",
    version=1,
    remedy="make the dataset again with `nmt preprocess`",
)


def indices_of(parts: Sequence[Corpora]) -> dict[str, Ids]:
    """Return the indices of the pairs of each named corpus, over the shards of a dataset."""
    ranges: dict[str, list[Ids]] = {}
    start, total = 0, sum(sum(corpora.pairs) for corpora in parts)
    # Half of the memory: these arrays hold a number for each pair of the corpus.
    dtype = np.int32 if total < 2**31 else np.int64
    for corpora in parts:
        for name, pairs in zip(corpora.names, corpora.pairs, strict=True):
            if name is not None:
                ranges.setdefault(name, []).append(np.arange(start, start + pairs, dtype=dtype))
            start += pairs
    return {name: np.concatenate(indices) for name, indices in ranges.items()}


SAMPLE = 100_000
"""Number of sentences, evenly spread over the split, from which quantiles are computed."""

BLOCK = 4096
"""Number of sentences read at once."""


@dataclass(frozen=True)
class LengthStatistics:
    """Lengths of the sentences of one side of a split in tokens, EOS included."""

    mean: float
    median: int
    most: int
    """90th percentile of the lengths."""
    nearly_all: int
    """99th percentile of the lengths."""
    greatest: int

    def __str__(self) -> str:
        return (
            f"mean {self.mean:.1f}, median {self.median}, 90% {self.most}, "
            f"99% {self.nearly_all}, greatest {self.greatest}"
        )


def length_statistics(dataset: Dataset, split: str, side: Side) -> LengthStatistics | None:
    """Return the lengths of the sentences of a split; None if there is no sentence."""
    counts = dataset.manifest.splits[split]
    if not counts.pairs:
        return None
    tokens = counts.source_tokens if side == "source" else counts.target_tokens
    # A sample: quantiles of 100,000 sentences are precise enough, and cost no reading of the
    # corpus.
    lengths = dataset.split(split).sampled_lengths(side, SAMPLE)
    median, most, nearly_all = np.quantile(lengths, [0.5, 0.9, 0.99], method="inverted_cdf")
    return LengthStatistics(
        mean=tokens / counts.pairs,
        median=int(median),
        most=int(most),
        nearly_all=int(nearly_all),
        greatest=int(lengths.max()),
    )


def tokens_in_use(dataset: Dataset, side: Side) -> int:
    """Return how many tokens of the vocabulary occur in a sample of the training sentences."""
    split = dataset.split("train")
    occurs = np.zeros(dataset.manifest.vocabulary(side), dtype=bool)
    sample = np.arange(0, len(split), max(1, -(-len(split) // SAMPLE)))
    for start in range(0, len(sample), BLOCK):
        occurs[split.padded(side, sample[start : start + BLOCK])] = True
    occurs[0] = False  # padding
    return int(occurs.sum())

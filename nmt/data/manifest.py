"""The manifest of a dataset: its content, and the files that belong to the dataset.

``docs/formats.md`` describes every file. A manifest is untrusted input: every value is checked
against the other values and the files before use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.io.documents import DocumentFormat, FileFacts
from nmt.lazy import np

if TYPE_CHECKING:
    import numpy.typing as npt

VERSION = 3
"""Version of the format; a dataset of another version is refused."""

REMEDY = "make the dataset again with `nmt preprocess`"

MANIFEST = "manifest.json"

OFFSET_TYPE = "<i8"

LINK_TYPE = "<u2"
"""Type of the numbers of words in word alignments."""

PAIR_NUMBERS = {"directions": "<u2", "weights": "<f4"}
"""Types of the numbers that each pair may have, by their names."""

SPLITS = ("train", "valid", "test")

TokenType = Literal["<u2", "<i4"]

Side = Literal["source", "target"]

SIDES: tuple[Side, Side] = ("source", "target")

Ids: TypeAlias = "npt.NDArray[np.integer[Any]]"

Lengths: TypeAlias = "npt.NDArray[np.integer[Any]]"


def token_type(vocabulary: int) -> TokenType:
    """Return the numpy type of the token ids of a vocabulary of this size."""
    # Two bytes halve the size of usual datasets.
    return "<u2" if vocabulary <= 2**16 else "<i4"


def reasons(dropped: Mapping[str, int]) -> str:
    """Return why pairs were dropped, such as "3 empty, 1 too long", or "nothing"."""
    return (
        ", ".join(f"{n:,} {why.replace('_', ' ')}" for why, n in dropped.items() if n) or "nothing"
    )


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of one split: its pairs and tokens, and the pairs that cleaning removed."""

    pairs: int
    source_tokens: int
    """EOS included, as in every count of tokens."""
    target_tokens: int
    source_unknown: int
    """Number of source tokens that are UNK."""
    target_unknown: int
    dropped: dict[str, int]
    """Reason to number of dropped pairs; empty for held-out splits, which keep every pair."""
    rewritten: dict[str, int]
    """Cleaning step to number of lines that it changed."""
    examples: dict[str, tuple[tuple[str, str], ...]]
    """The first few dropped pairs (source and target) or rewritten lines (before and after)."""

    def __post_init__(self) -> None:
        counted = {key: value for key, value in vars(self).items() if isinstance(value, int)}
        for key, count in {**counted, **self.dropped, **self.rewritten}.items():
            if count < 0:
                raise ValueError(f"{key} must be at least 0, not {count}")
        sides = (self.source_tokens, self.source_unknown), (self.target_tokens, self.target_unknown)
        for tokens, num_unknown in sides:
            # Each sentence has an EOS, so there are at least as many tokens as pairs.
            if not max(self.pairs, num_unknown) <= tokens or bool(tokens) != bool(self.pairs):
                raise ValueError(
                    f"{self.pairs} pairs do not hold {tokens} tokens, {num_unknown} of them unknown"
                )

    def why_dropped(self) -> str:
        """Return why pairs were dropped, such as "3 empty, 1 too long", or "nothing"."""
        return reasons(self.dropped)

    def __add__(self, other: SplitCounts) -> SplitCounts:
        """Return the sum of the counts; the first split's examples win."""
        values = {}
        for name, one in vars(self).items():
            two = getattr(other, name)
            if isinstance(one, int):
                values[name] = one + two
            elif name == "examples":
                # The right operand of | wins.
                values[name] = two | one
            else:
                values[name] = {key: one.get(key, 0) + two.get(key, 0) for key in {**one, **two}}
        return SplitCounts(**values)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of ``manifest.json``: the properties and the origin of a dataset."""

    fingerprint: str
    """Hash of all checksums: equal for equal data, independent of place and time."""
    source_lang: str
    target_lang: str
    source_vocabulary: int
    """Number of source token ids, special ids included."""
    target_vocabulary: int
    shared_vocabulary: bool
    """Whether the two vocabularies are one."""
    source_dtype: TokenType
    """Type of the source's token array, in numpy's notation."""
    target_dtype: TokenType
    splits: dict[str, SplitCounts]
    files: dict[str, FileFacts]
    """Every other file of the directory."""
    recipe: dict[str, Any]
    """The ``preprocess`` section that made the data, complete."""
    shard: str | None = None
    """``I/N`` where the training split is the I-th of N parts, else None."""

    def __post_init__(self) -> None:
        for side in SIDES:
            check_language(f"{side}_lang", self.language(side))
            size, dtype = self.vocabulary(side), self.dtype(side)
            if not EOS < size < 2**31:
                raise ValueError(f"{side}_vocabulary must be from 4 to 2^31 - 1, not {size}")
            if dtype != token_type(size):
                raise ValueError(f"{side}_dtype: ids of {size} pieces are not stored as {dtype}")
        # Files of the two sides differ in the language of their names alone.
        if self.source_lang == self.target_lang:
            raise ValueError(f"source_lang and target_lang are both {self.source_lang!r}")
        if self.shared_vocabulary and self.source_vocabulary != self.target_vocabulary:
            raise ValueError("one shared vocabulary has two sizes")
        if "train" not in self.splits or not set(self.splits) <= set(SPLITS):
            names = ", ".join(map(repr, list(self.splits)[:4]))
            raise ValueError(f"splits must be some of {', '.join(SPLITS)}, with train, not {names}")

    def language(self, side: Side) -> str:
        """Return the language of a side, as in file names."""
        return self.source_lang if side == "source" else self.target_lang

    def dtype(self, side: Side) -> TokenType:
        """Return the numpy type of a side's token arrays."""
        return self.source_dtype if side == "source" else self.target_dtype

    def vocabulary(self, side: Side) -> int:
        """Return the number of token ids of a side, special ids included."""
        return self.source_vocabulary if side == "source" else self.target_vocabulary

    def stem(self, split: str, side: Side) -> str:
        """Return the name of a side's text file; array files add a suffix to this name."""
        return f"{split}.{self.language(side)}"

    def has_links(self, split: str) -> bool:
        """Return whether a split has word alignments."""
        return link_files(split)[1] in self.files

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read the manifest of the dataset at `path`.

        Raises:
            NmtError: there is no manifest, or it is damaged or of another format.
        """
        file = path / MANIFEST
        try:
            manifest = MANIFESTS.read(file)
            manifest._check_files()
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path}: not a dataset (no {MANIFEST}); make one with `nmt preprocess`, whose "
                "recipe `nmt init` writes"
            ) from None
        except ValueError as error:
            raise NmtError(f"{file}: damaged: {error}; {REMEDY}") from None
        return manifest

    def _check_files(self) -> None:
        """Compare the files with the splits, and the fingerprint with the files.

        Raises:
            ValueError: a name, a size or the fingerprint does not match.
        """
        for name in self.files:
            # A manifest comes from elsewhere and must not name files outside of its directory.
            if not name.isprintable() or "/" in name or name in ("", ".", "..", MANIFEST):
                raise ValueError(f"{name!r} is not the name of a file of a dataset")
        for name, size in self._array_sizes():
            if name not in self.files:
                raise ValueError(f"{name} is missing among its files")
            if self.files[name].bytes != size:
                raise ValueError(f"{name}: {self.files[name].bytes} bytes instead of {size}")
        if self.fingerprint != fingerprint_of(self.files):
            raise ValueError("its fingerprint does not match its files")

    def _array_sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the file name of each array and its size in bytes."""
        for split, counts in self.splits.items():
            for side in SIDES:
                tokens = counts.source_tokens if side == "source" else counts.target_tokens
                stem = self.stem(split, side)
                yield f"{stem}.tokens", tokens * np.dtype(self.dtype(side)).itemsize
                yield f"{stem}.offsets", (counts.pairs + 1) * np.dtype(OFFSET_TYPE).itemsize
            if self.has_links(split):
                links, offsets = link_files(split)
                link = 2 * np.dtype(LINK_TYPE).itemsize
                # Pairs may have any number of links, so only whole links are required.
                yield links, self.files[links].bytes // link * link if links in self.files else 0
                yield offsets, (counts.pairs + 1) * np.dtype(OFFSET_TYPE).itemsize
            for name, dtype in PAIR_NUMBERS.items():
                if (file := number_file(split, name)) in self.files:
                    yield file, counts.pairs * np.dtype(dtype).itemsize


MANIFESTS = DocumentFormat(kind=Manifest, name="nmt-dataset", version=VERSION, remedy=REMEDY)


def check_language(key: str, language: str) -> None:
    """Raise a ValueError if a language cannot be the end of a file's name."""
    if not language or not language.isprintable() or "/" in language:
        raise ValueError(f"{key} must be the end of a file's name, such as en, not {language!r}")


def link_files(split: str) -> tuple[str, str]:
    """Return the names of the files of a split's word alignments, and of their offsets."""
    return f"{split}.links", f"{split}.link_offsets"


def number_file(split: str, name: str) -> str:
    """Return the name of the file with a number of each pair of a split, such as its direction."""
    return f"{split}.{name}"


def fingerprint_of(facts: Mapping[str, FileFacts]) -> str:
    """Return the hash of the checksums of files, by name."""
    # The format of sha256sum, so that anyone can compute the fingerprint again.
    lines = "".join(f"{file.sha256}  {name}\n" for name, file in sorted(facts.items()))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()

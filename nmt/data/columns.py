"""The sentences of one side of a split, and its word alignments, as arrays of numbers in files.

The files hold raw little-endian numbers and are mapped into memory. A file may be damaged, forged
or overwritten during reading, so every value is checked before use.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from nmt.data.manifest import (
    LINK_TYPE,
    OFFSET_TYPE,
    REMEDY,
    Ids,
    Lengths,
    Manifest,
    Side,
    link_files,
)
from nmt.data.vocabulary import EOS, PAD
from nmt.errors import NmtError
from nmt.io import documents

CHECKED_AT_ONCE = 1 << 20
"""Numbers that :meth:`Column.check` holds in memory."""

COUNTED_AT_ONCE = 1 << 16
"""Sentences whose tokens :meth:`Column.most_of` holds in memory."""


class Column:
    """The sentences of one side of a split, in one pair of files."""

    def __init__(self, directory: Path, manifest: Manifest, split: str, side: Side) -> None:
        stem = manifest.stem(split, side)
        self._vocabulary = manifest.vocabulary(side)
        self._tokens, self._offsets = (
            MappedFile(directory / name, manifest.files[name], dtype)
            for name, dtype in (
                (f"{stem}.tokens", manifest.dtype(side)),
                (f"{stem}.offsets", OFFSET_TYPE),
            )
        )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def sentence(self, index: int) -> Ids:
        """Return the ids of a sentence, mapped from the file."""
        start, end = self._offsets.array()[index : index + 2].tolist()
        if not 0 <= start < end <= len(self._tokens):
            self._refuse_offsets()
        ids = self._tokens.array()[start:end]
        self._check_ids(ids)
        return ids

    def lengths(self) -> Lengths:
        """Return the number of tokens of every sentence, [n] int32."""
        # Offsets are stored and not lengths, so that any sentence is found in one step.
        offsets = self._offsets.array()
        # Subtract as int32 (correct modulo 2^32), to avoid an array of 8 bytes per sentence.
        return np.subtract(offsets[1:], offsets[:-1], dtype=np.int32, casting="unsafe")

    def sampled_lengths(self, step: int) -> Lengths:
        """Return the number of tokens of every `step`-th sentence."""
        offsets = self._offsets.array()
        starts, ends = offsets[:-1:step], offsets[1::step]
        self._check_offsets(starts, ends)
        return ends - starts

    def padded(self, indices: Ids) -> npt.NDArray[np.int64]:
        """Return the sentences at `indices` [B] as rows [B, L] int64, padded with PAD."""
        offsets = self._offsets.array()
        starts, ends = offsets[indices], offsets[indices + 1]
        self._check_offsets(starts, ends)
        lengths = ends - starts
        columns = np.arange(lengths.max(initial=0))
        real = columns < lengths[:, None]  # [B, L]
        # One indexed read for the whole batch.
        ids = self._tokens.array()[(starts[:, None] + columns)[real]]
        self._check_ids(ids)
        rows = np.full(real.shape, PAD, dtype=np.int64)
        rows[real] = ids
        return rows

    def most_of(self, ids: Sequence[int]) -> int:
        """Return the largest number of tokens of a sentence that are among some ids."""
        counted = np.zeros(self._vocabulary, np.int32)
        counted[ids] = 1
        most = 0
        for first in range(0, len(self), COUNTED_AT_ONCE):
            offsets = self._offsets.array()[first : first + COUNTED_AT_ONCE + 1]
            self._check_offsets(offsets[:-1], offsets[1:])
            tokens = self._tokens.array()[offsets[0] : offsets[-1]]
            self._check_ids(tokens)
            counts = np.add.reduceat(counted[tokens], offsets[:-1] - offsets[0])
            most = max(most, int(counts.max()))
        return most

    def check(self) -> None:
        """Read both files once, in bounded memory.

        Raises:
            NmtError: offsets do not start at 0, fall, or do not end at the number of tokens; a
                sentence is empty or does not end with EOS; an id is outside the vocabulary; or a
                checksum does not match.
        """
        with self._offsets.reader() as read_offsets, self._tokens.reader() as read_ids:
            start = place = 0  # of the next sentence, and of the next token to be read
            if read_offsets(1).tolist() != [0]:
                self._offsets.refuse("the first sentence does not start at 0")
            while len(ends := read_offsets(CHECKED_AT_ONCE)):
                starts = np.concatenate(([start], ends[:-1]))
                self._check_offsets(starts, ends)
                start = int(ends[-1])
                while place < start:
                    ids = read_ids(min(CHECKED_AT_ONCE, start - place))
                    self._check_stored(ids, ends, place)
                    place += len(ids)
            if place != len(self._tokens):
                self._offsets.refuse(f"sentences end at token {place} of {len(self._tokens)}")

    def _check_stored(self, ids: Ids, ends: Ids, place: int) -> None:
        """Refuse bad ids, read at token `place`, of sentences that end at tokens `ends`."""
        if not len(ids):
            self._tokens.refuse("has been cut while it was read")
        self._check_ids(ids)
        # PAD is 0.
        if not ids.all():
            self._tokens.refuse("a sentence holds padding")
        first, last = np.searchsorted(ends, (place, place + len(ids)), "right")
        if (ids[ends[first:last] - 1 - place] != EOS).any():
            self._tokens.refuse("a sentence does not end with the end of sentence")

    def _check_offsets(self, starts: Ids, ends: Ids) -> None:
        if len(starts) and (
            starts.min() < 0 or ends.max() > len(self._tokens) or (starts >= ends).any()
        ):
            self._refuse_offsets()

    def _refuse_offsets(self) -> NoReturn:
        self._offsets.refuse("a sentence is empty or outside of its file")

    def _check_ids(self, ids: Ids) -> None:
        # Read as unsigned numbers, negative ids are large, too.
        if len(ids) and ids.view(f"u{ids.itemsize}").max() >= self._vocabulary:
            self._tokens.refuse(f"a token id is not below {self._vocabulary}")


class MappedFile:
    """An array in a file, mapped into memory that processes share."""

    def __init__(self, path: Path, facts: documents.FileFacts, dtype: str) -> None:
        self.path = path
        self._facts = facts
        self._map: mmap.mmap | None = None
        self._array: Ids = np.empty(0, dtype)  # an empty file cannot be mapped
        with documents.open_checked(path, facts, REMEDY) as file:
            if facts.bytes:
                self._map = mmap.mmap(file.fileno(), facts.bytes, access=mmap.ACCESS_READ)
                self._array = np.frombuffer(self._map, dtype)

    def __len__(self) -> int:
        return len(self._array)

    def array(self) -> Ids:
        """Return the array, for immediate use: reading past a truncated file kills the process."""
        # Asked each time: reading beyond the end of a mapped file is a signal, not an exception.
        if self._map is not None and self._map.size() < self._facts.bytes:
            self.refuse("has been cut since it was opened")
        return self._array

    @contextmanager
    def reader(self) -> Iterator[Callable[[int], Ids]]:
        """Yield a function that reads the next `count` numbers; check the checksum at the end."""
        # Ids and checksum in one reading of the file.
        digest, dtype = hashlib.sha256(), self._array.dtype
        with documents.open_checked(self.path, self._facts, REMEDY) as file:

            def read(count: int) -> Ids:
                data = file.read(count * dtype.itemsize)
                digest.update(data)
                # A file that was cut may end in the middle of a number.
                return np.frombuffer(data, dtype, len(data) // dtype.itemsize)

            yield read
        documents.check_digest(digest.hexdigest(), self.path, self._facts, REMEDY)

    def refuse(self, problem: str) -> NoReturn:
        """Raise an :class:`NmtError` that names the file."""
        raise NmtError(f"{self.path}: damaged: {problem}; {REMEDY}")


class RaggedArray(NamedTuple):
    """Consecutive sentences of one side, concatenated as in the files."""

    tokens: Ids
    lengths: Lengths

    @classmethod
    def from_sentences(cls, ids: list[list[int]]) -> RaggedArray:
        """Build sentences from lists of ids, and append EOS to each."""
        return cls.from_lists(ids).with_eos()

    @classmethod
    def from_lists(cls, ids: list[list[int]]) -> RaggedArray:
        """Build sentences from lists of ids, unchanged."""
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = itertools.chain.from_iterable(ids)
        return cls(np.fromiter(flat, np.int32, int(lengths.sum())), lengths)

    def with_eos(self) -> RaggedArray:
        """Return the sentences with EOS appended to each."""
        return RaggedArray(np.insert(self.tokens, np.cumsum(self.lengths), EOS), self.lengths + 1)

    def with_prefix(self, ids: Sequence[int]) -> RaggedArray:
        """Return the sentences with these ids before each."""
        if not ids:
            return self
        starts = np.cumsum(self.lengths) - self.lengths
        places, begins = np.repeat(starts, len(ids)), np.tile(ids, len(starts))
        return RaggedArray(
            np.insert(self.tokens, places, begins.astype(self.tokens.dtype)),
            self.lengths + len(ids),
        )

    def keep(self, copies: npt.NDArray[np.bool_ | np.int64]) -> RaggedArray:
        """Return ``copies[i]`` copies of sentence i; False or 0 drops the sentence."""
        if (copies == 1).all():
            return self
        return self.take(np.repeat(np.arange(len(copies)), copies))

    def take(self, indices: Ids) -> RaggedArray:
        """Return the sentences at `indices` [m], in this order, with repetitions."""
        lengths = self.lengths[indices]
        starts = (np.cumsum(self.lengths) - self.lengths)[indices]
        # No loop over sentences: the index of every token is computed at once.
        moves = starts - (np.cumsum(lengths) - lengths)  # from new to old position
        return RaggedArray(
            self.tokens[np.repeat(moves, lengths) + np.arange(lengths.sum())], lengths
        )


MOST_WORDS = int(np.iinfo(LINK_TYPE).max) + 1
"""Words of a line whose numbers can be stored."""


class LinkColumn:
    """The word alignments of a split, in one pair of files.

    A link is the number of a source word and the number of a target word, both from 0. Words and
    not subwords are counted, so links stay valid with any segmentation.
    """

    def __init__(self, directory: Path, manifest: Manifest, split: str) -> None:
        self._links, self._offsets = (
            MappedFile(directory / name, manifest.files[name], dtype)
            for name, dtype in zip(link_files(split), (LINK_TYPE, OFFSET_TYPE), strict=True)
        )

    def take(self, indices: Ids) -> RaggedArray:
        """Return the links of the pairs at `indices` [B]: source and target word in turn."""
        offsets = self._offsets.array()
        starts, ends = offsets[indices], offsets[indices + 1]
        self._check_offsets(starts, ends)
        # A link is two numbers.
        lengths = 2 * (ends - starts)
        moves = 2 * starts - (np.cumsum(lengths) - lengths)  # from new to old position
        numbers = self._links.array()[np.repeat(moves, lengths) + np.arange(lengths.sum())]
        return RaggedArray(numbers.astype(np.int64), lengths)

    def check(self) -> None:
        """Read both files once, in bounded memory.

        Raises:
            NmtError: offsets do not start at 0, fall, or do not end at the number of links; or a
                checksum does not match.
        """
        with self._offsets.reader() as read_offsets, self._links.reader() as read_links:
            end = read_offsets(1)
            if end.tolist() != [0]:
                self._offsets.refuse("the first pair does not start at 0")
            while len(ends := read_offsets(CHECKED_AT_ONCE)):
                self._check_offsets(np.concatenate((end, ends[:-1])), ends)
                end = ends[-1:]
            if 2 * int(end[0]) != len(self._links):
                self._offsets.refuse(f"pairs end at link {int(end[0])} of {len(self._links) // 2}")
            # Only for the checksum.
            while len(read_links(CHECKED_AT_ONCE)):
                pass

    def _check_offsets(self, starts: Ids, ends: Ids) -> None:
        if len(starts) and (
            starts.min() < 0 or 2 * ends.max() > len(self._links) or (starts > ends).any()
        ):
            self._offsets.refuse("the links of a pair are outside of their file")

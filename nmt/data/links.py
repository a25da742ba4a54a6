"""Word alignments of the pairs of a split: links between words, in files.

A link is a pair of numbers, of a source word and of a target word, from 0. The numbers are those of
words and not of subwords, so they stay right however a sentence is cut.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nmt.data.columns import CHECKED_AT_ONCE, MappedFile, Sentences
from nmt.data.manifest import LINK_TYPE, OFFSET_TYPE, Ids, Manifest, link_files

MOST_WORDS = int(np.iinfo(LINK_TYPE).max) + 1
"""Words of a line whose numbers can be stored."""


class LinkColumn:
    """The word alignments of a split, in one pair of files."""

    def __init__(self, directory: Path, manifest: Manifest, split: str) -> None:
        self._links, self._offsets = (
            MappedFile(directory / name, manifest.files[name], dtype)
            for name, dtype in zip(link_files(split), (LINK_TYPE, OFFSET_TYPE), strict=True)
        )

    def of(self, indices: Ids) -> Sentences:
        """Return the links of the pairs at `indices` [B]: source and target word in turn."""
        offsets = self._offsets.array()
        starts, ends = offsets[indices], offsets[indices + 1]
        self._check_offsets(starts, ends)
        lengths = 2 * (ends - starts)
        moves = 2 * starts - (np.cumsum(lengths) - lengths)  # from new to old position
        numbers = self._links.array()[np.repeat(moves, lengths) + np.arange(lengths.sum())]
        return Sentences(numbers.astype(np.int64), lengths)

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
            while len(read_links(CHECKED_AT_ONCE)):
                pass

    def _check_offsets(self, starts: Ids, ends: Ids) -> None:
        if len(starts) and (
            starts.min() < 0 or 2 * ends.max() > len(self._links) or (starts > ends).any()
        ):
            self._offsets.refuse("the links of a pair are outside of their file")

"""Find repeated keys, exactly and in bounded memory, by a sort in 256 parts on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

BLOCK = 1 << 17
"""Keys to read at once."""

_PARTS = 256
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<i8")])


def joined(*sides: str) -> bytes:
    """Return the sides of a pair as bytes to hash, which differ if a side differs.

    Tabs separate the sides. Tabs within a side become line feeds, which no line has, so that pairs
    without tabs keep the hashes that divide a dataset into shards.
    """
    # Lines hold no line feed, so the separator cannot be part of a side.
    return "\t".join(side.replace("\t", "\n") for side in sides).encode()


def mark_repeated(keys: Path, marks: Path, scratch: Path) -> None:
    """Write for every key of a file whether an equal key came before.

    Takes the memory of a 256th of the keys, 24 bytes each.

    Args:
        keys: file of n keys, each two little-endian uint64.
        marks: file to write: n bytes, 1 for a repeated key, else 0.
        scratch: directory to make, which needs 1.5 times the size of `keys`.
    """
    # Written, because a disk that is full when a hole is filled through a map kills the process.
    marks.write_bytes(np.zeros(keys.stat().st_size // 16, np.bool_).data)
    repeated = open_marks(marks)
    for indices in _repetitions(_blocks(keys), scratch):
        repeated[indices] = True


def open_marks(path: Path) -> npt.NDArray[np.bool_]:
    """Return the marks of a file, mapped from it; setting one changes the file."""
    return np.memmap(path, np.bool_, "r+") if path.stat().st_size else np.zeros(0, np.bool_)


def _repetitions(
    blocks: Iterable[tuple[int, Keys]], scratch: Path
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the indices of the keys that came before, some of them at once.

    Args:
        blocks: keys in blocks [k, 2], each with the index of its first key.
        scratch: directory to make, which needs 24 bytes a key.
    """
    # A killed run may have left it.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with ExitStack() as stack:
        parts = [stack.enter_context((scratch / f"{part}").open("wb")) for part in range(_PARTS)]
        for start, block in blocks:
            # By the highest byte of a hash: equal keys meet in one part, and parts are of similar
            # size.
            part = (block[:, 0] >> np.uint64(56)).astype(np.uint8)
            order = np.argsort(part, kind="stable")
            entries = np.empty(len(block), _ENTRY)
            entries["high"], entries["low"] = block[order].T
            entries["index"] = start + order
            ends = np.cumsum(np.bincount(part, minlength=_PARTS))
            for file, entries_of_part in zip(parts, np.split(entries, ends[:-1]), strict=True):
                file.write(entries_of_part.tobytes())
    for part in range(_PARTS):
        file_of_part = scratch / f"{part}"
        entries = np.fromfile(file_of_part, _ENTRY)
        file_of_part.unlink()
        order = np.lexsort((entries["low"], entries["high"]))  # stable: the first comes first
        high, low, index = (entries[name][order] for name in ("high", "low", "index"))
        again = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1])) + 1
        yield index[again]


def _blocks(keys: Path) -> Iterator[tuple[int, Keys]]:
    """Yield the keys in blocks [k, 2], each with the index of its first key."""
    start = 0
    with keys.open("rb") as file:
        while len(block := np.fromfile(file, "<u8", 2 * BLOCK)):
            yield start, block.reshape(-1, 2)
            start += len(block) // 2

"""Ends of documents in lines as they are read."""

from __future__ import annotations

from collections.abc import Sequence


def last_end(lines: Sequence[bytes], most: int, has_ids: bool) -> int:
    """Return the number of lines, at most `most`, behind which a document ends; `most` for none.

    Args:
        lines: more lines, or as many.
        most: number of lines.
        has_ids: whether the last column of the lines has ids, each document another one. Otherwise
            a document ends where a line is blank and the next is not, or the other way round.
    """
    mark = _id if has_ids else _is_blank
    for count in range(most - 1, 0, -1):
        if mark(lines[count]) != mark(lines[count - 1]):
            return count
    return most


def _id(line: bytes) -> bytes:
    return line.rpartition(b"\t")[2].strip()


def _is_blank(line: bytes) -> bool:
    return not line.decode(errors="replace").strip()

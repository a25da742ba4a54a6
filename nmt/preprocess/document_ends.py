"""Where documents end in lines as they are read."""

from __future__ import annotations

from collections.abc import Sequence


def last_end(lines: Sequence[bytes], most: int) -> int:
    """Return the number of lines, at most `most`, behind which a document ends; `most` for none.

    A document ends where a line is blank and the next is not, or the other way round.
    """
    for count in range(most - 1, 0, -1):
        if _is_blank(lines[count]) != _is_blank(lines[count - 1]):
            return count
    return most


def _is_blank(line: bytes) -> bool:
    return not line.decode(errors="replace").strip()

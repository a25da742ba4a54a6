"""Input of ``nmt translate``: lines, and files with a prefix or phrases for each line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.errors import NmtError
from nmt.io.lines import Lines, OnInvalidUtf8

if TYPE_CHECKING:
    from nmt.inference import Request

BLOCK = 1024
"""Lines to read at once from the files of prefixes and phrases."""


class Requests:
    """Lines to translate, with the prefix and the required phrases of each translation."""

    def __init__(self, lines: Lines, prefixes: Lines | None, phrases: Lines | None) -> None:
        """Keep the files; reading begins later.

        Args:
            lines: lines to translate.
            prefixes: line n is the beginning of the translation of line n.
            phrases: line n holds the phrases for the translation of line n, separated by tabs.
        """
        self.name = lines.name
        self._lines, self._prefixes, self._phrases = lines, prefixes, phrases

    @classmethod
    def open(cls, lines: Path | None, prefixes: Path | None, phrases: Path | None) -> Requests:
        """Open the files; `lines` None is stdin."""
        beside = [None if path is None else Lines.open(path) for path in (prefixes, phrases)]
        return cls(Lines.open(lines), *beside)

    @property
    def is_typed(self) -> bool:
        """Whether a person types the lines at a terminal."""
        return self._lines.is_typed

    def read_as(self, on_invalid_utf8: OnInvalidUtf8) -> None:
        """Set the treatment of bytes that are not UTF-8, for all files."""
        for lines in (self._lines, self._prefixes, self._phrases):
            if lines is not None:
                lines.on_invalid_utf8 = on_invalid_utf8

    def arriving(self, most: int) -> Iterator[list[str] | list[Request]]:
        """Yield blocks of at most `most` lines, as :meth:`nmt.io.lines.Lines.arriving` does.

        Raises:
            NmtError: the file of prefixes or phrases has another number of lines.
        """
        if self._prefixes is None and self._phrases is None:
            yield from self._lines.arriving(most)
            return
        from nmt.inference import Request

        beside = [_one_by_one(lines) for lines in (self._prefixes, self._phrases)]
        for block in self._lines.arriving(most):
            requests = []
            for text in block:
                prefix, phrases = map(self._next, beside)
                requests.append(Request(text, prefix, tuple(phrases.split("\t"))))
            yield requests
        for lines in beside:
            if lines is not None and next(lines[1], None) is not None:
                raise self._uneven(lines[0])

    def _next(self, beside: tuple[str, Iterator[str]] | None) -> str:
        if beside is None:
            return ""
        line = next(beside[1], None)
        if line is None:
            raise self._uneven(beside[0])
        return line

    def _uneven(self, name: str) -> NmtError:
        return NmtError(
            f"{self.name} and {name} differ in their number of lines; "
            "line n of one must belong to line n of the other"
        )


def _one_by_one(lines: Lines | None) -> tuple[str, Iterator[str]] | None:
    if lines is None:
        return None
    return lines.name, chain.from_iterable(lines.blocks(BLOCK))

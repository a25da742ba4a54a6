"""Text as lines, for whoever translates or scores it.

A line ends at a line feed and nowhere else: U+2028, a lone carriage return or a NUL inside a line
never splits it, so that line 7 here is line 7 for every other tool. One carriage return before the
line feed is taken off. Files whose name ends with ``.gz``, ``.xz`` or ``.zst`` are decompressed on
the way.
"""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import os
import queue
import stat
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

from nmt.errors import NmtError

zstd: Any = None
for _module in ("compression.zstd", "backports.zstd"):  # of Python 3.14, and for those before it
    with suppress(ImportError):
        zstd = zstd or importlib.import_module(_module)

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
"""What files are decompressed, by the end of their names."""

_ZstdError: type[Exception] = zstd.ZstdError if zstd else EOFError

OnInvalidUtf8 = Literal["error", "replace"]

LONGEST = 1 << 24
"""Bytes of the longest line that is read, so that no input can fill the memory."""


class Lines:
    """The lines of a stream, without their ends; they can be read once."""

    def __init__(
        self, stream: IO[bytes], name: str, on_invalid_utf8: OnInvalidUtf8 | None = None
    ) -> None:
        """The lines that a stream will give.

        Args:
            stream: read in binary; never closed here, for that would be to wait for the thread
                that may be reading it.
            name: what messages call it.
            on_invalid_utf8: whether bytes that are not UTF-8 are an error or become U+FFFD; None
                for an error where the user has no such choice.
        """
        self.name = name
        self._stream = stream
        self.on_invalid_utf8 = on_invalid_utf8

    @classmethod
    def open(cls, path: Path | None, on_invalid_utf8: OnInvalidUtf8 | None = None) -> Lines:
        """The lines of a file; None, or the path ``-``, is stdin."""
        if path is None or str(path) == "-":
            return cls(_stdin(), "stdin", on_invalid_utf8)
        return cls(decompressed(path.open("rb"), path), str(path), on_invalid_utf8)

    @property
    def is_typed(self) -> bool:
        """Whether someone types the lines, at a terminal."""
        return self._stream.isatty()

    def read(self) -> list[str]:
        """All lines at once."""
        return self._decode(list(self._raw()), 1)

    def blocks(self, size: int) -> Iterator[list[str]]:
        """The lines, `size` at a time, and fewer only at the end."""
        raw, first = self._raw(), 1
        while block := list(islice(raw, size)):
            yield self._decode(block, first)
            first += len(block)

    def arriving(self, most: int) -> Iterator[list[str]]:
        """The lines, as many at a time as there are, at most `most`.

        Of a file, all there are. Of a terminal or pipe, those that have arrived: one that was
        typed is not kept waiting for the next, and a full pipe still fills a block.
        """
        if stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode):
            yield from self.blocks(most)
            return
        first = 1
        for block in _arriving(self._raw(), most):
            yield self._decode(block, first)
            first += len(block)

    def _raw(self) -> Iterator[bytes]:
        """The lines as they are, each with its line feed (but perhaps the last)."""
        with named_damage(Path(self.name)):
            for number, line in enumerate(
                iter(lambda: self._stream.readline(LONGEST + 1), b""), start=1
            ):
                if len(line) > LONGEST:
                    raise NmtError(
                        f"{self.name}:{number}: the line is longer than {LONGEST:,} bytes; "
                        "is this text, one sentence a line?"
                    )
                yield line

    def _decode(self, block: list[bytes], first: int) -> list[str]:
        return decode(b"".join(block), self.name, first, self.on_invalid_utf8)


def refuse_one_string(lines: object, name: str) -> None:
    """Refuse one string where lines are wanted: Python would take each character for a line.

    Raises:
        TypeError: `lines`, the argument called `name`, is text.
    """
    if isinstance(lines, (str, bytes)):
        raise TypeError(
            f"{name}: expected a list of lines, not one string; "
            'give [text], or text.split("\\n") where it holds several lines'
        )


def decompressed(file: io.BufferedReader, path: Path) -> BinaryIO:
    """What the file at a path holds, of which `file` gives the bytes.

    Raises:
        NmtError: the file is empty, which no compressed text is, or a package is missing.
    """
    if path.suffix not in COMPRESSED:
        return file
    if path.suffix == ".zst" and zstd is None:
        raise NmtError(f"{path}: reading .zst needs a package; pip install backports.zstd")
    with named_damage(path):
        if not file.peek(1):
            raise EOFError  # as all do but gzip, for which nothing is an empty text
    module = {".gz": gzip, ".xz": lzma, ".zst": zstd}[path.suffix]
    # By themselves these read lines in Python, several times more slowly.
    return io.BufferedReader(cast(io.RawIOBase, module.open(file)), 1 << 18)


@contextmanager
def named_damage(path: Path) -> Iterator[None]:
    """Turns what decompression fails with, of the file at a path, into an :class:`NmtError`."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, _ZstdError):
        raise NmtError(
            f"{path}: the {COMPRESSED[path.suffix]} file is truncated or damaged; "
            "fetch or compress it again"
        ) from None


def decode(raw: bytes, name: str, first: int, on_invalid_utf8: OnInvalidUtf8 | None) -> list[str]:
    """Lines as text, without their ends; `first` is the number of the first."""
    try:
        text = raw.decode("utf-8", "replace" if on_invalid_utf8 == "replace" else "strict")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        choice = ", or set on_invalid_utf8 to replace" if on_invalid_utf8 else ""
        raise NmtError(
            f"{name}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; "
            f"convert it with iconv{choice}"
        ) from None
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return lines


def _stdin() -> IO[bytes]:
    """A stream of its own: the interpreter waits for whoever reads Python's when it ends."""
    if sys.stdin is None:
        raise NmtError("stdin is closed; name a file to read")
    return os.fdopen(sys.stdin.fileno(), "rb", closefd=False)


def _arriving(lines: Iterator[bytes], most: int) -> Iterator[list[bytes]]:
    """Blocks of what a thread has read so far; what it fails with is raised after the last line."""
    end = b""  # which is no line
    waiting: queue.Queue[bytes] = queue.Queue(most)
    failures: list[Exception] = []

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
        except (OSError, NmtError) as error:
            failures.append(error)
        waiting.put(end)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        block = [waiting.get()]
        while len(block) < most and not waiting.empty():
            block.append(waiting.get())
        if ended := block[-1] == end:
            block.pop()
        if block:
            yield block
    if failures:
        raise failures[0]

"""Lines of text files, compressed files and stdin.

A line ends only at a line feed. U+2028, a lone carriage return or a NUL does not split a line, so
line 7 here is line 7 for every other tool. One carriage return before the line feed is removed,
and so is a byte order mark before the first line.
Files whose name ends with ``.gz``, ``.xz`` or ``.zst`` are decompressed while they are read.
"""

from __future__ import annotations

import codecs
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
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

from nmt.errors import NmtError

zstd: Any = None
for _module in ("compression.zstd", "backports.zstd"):  # in Python 3.14, and before it
    with suppress(ImportError):
        zstd = zstd or importlib.import_module(_module)

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
"""Compression formats by file name suffix."""

_ZstdError: type[Exception] = zstd.ZstdError if zstd else EOFError

OnInvalidUtf8 = Literal["error", "replace"]

MAX_LINE_BYTES = 1 << 24
"""Bytes of the longest line that is read; bounds the memory for any input."""


class Lines:
    """The lines of a stream, without line ends; they can be read once."""

    def __init__(
        self, stream: IO[bytes], name: str, on_invalid_utf8: OnInvalidUtf8 | None = None
    ) -> None:
        """Prepare to read a stream.

        Args:
            stream: a binary stream. It is never closed here: closing would wait for a thread that
                may be reading the stream.
            name: the stream's name in messages.
            on_invalid_utf8: "error" to refuse invalid UTF-8, "replace" to replace it by U+FFFD;
                None for an error whose message offers no choice.
        """
        self.name = name
        self._stream = stream
        self.on_invalid_utf8 = on_invalid_utf8

    @classmethod
    def open(cls, path: Path | None, on_invalid_utf8: OnInvalidUtf8 | None = None) -> Lines:
        """Open a file, or stdin for None or the path ``-``."""
        if path is None or str(path) == "-":
            return cls(open_stdin(), "stdin", on_invalid_utf8)
        return cls(decompressed(path.open("rb"), path), str(path), on_invalid_utf8)

    @property
    def is_typed(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def count(self) -> int | None:
        """Return the number of lines before any is read; None if they cannot be read twice."""
        if not (self._is_file() and self._stream.seekable()):
            return None
        start, lines, last = self._stream.tell(), 0, b"\n"
        with named_damage(Path(self.name)):
            while block := self._stream.read(1 << 20):
                lines += block.count(b"\n")
                last = block[-1:]
            self._stream.seek(start)
        # The last line may lack its line feed.
        return lines + (last != b"\n")

    def read(self) -> list[str]:
        """Return all lines."""
        return self._decode(list(self._raw()), 1)

    def blocks(self, size: int) -> Iterator[list[str]]:
        """Yield the lines in blocks of `size`; only the last block may be shorter."""
        first = 1
        for block in self._raw_blocks(size):
            yield self._decode(block, first)
            first += len(block)

    def arriving(self, most: int) -> Iterator[list[str]]:
        """Yield the lines in blocks of at most `most`, as soon as they arrive.

        A file gives full blocks. A terminal or a pipe gives the lines that have arrived: a typed
        line does not wait for the next line, and a full pipe still gives full blocks. Lines before
        invalid UTF-8 are yielded before the error.
        """
        # A pipe gives lines when they come, and somebody may wait for their translation.
        blocks = self._raw_blocks(most) if self._is_file() else _arriving(self._raw(), most)
        first = 1
        for block in blocks:
            if first == 1:
                refuse_other_text(b"".join(block), self.name)
            try:
                lines = self._decode(block, first)
            except NmtError:
                if good := list(takewhile(_is_utf8, block)):
                    yield self._decode(good, first)
                raise
            yield lines
            first += len(block)

    def _is_file(self) -> bool:
        return stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode)

    def _raw(self) -> Iterator[bytes]:
        """Yield the undecoded lines, each with its line feed (except perhaps the last)."""
        with named_damage(Path(self.name)):
            yield from lines_of(self._stream, self.name)

    def _raw_blocks(self, size: int) -> Iterator[list[bytes]]:
        raw = self._raw()
        return iter(lambda: list(islice(raw, size)), [])

    def _decode(self, block: list[bytes], first: int) -> list[str]:
        return decode(b"".join(block), self.name, first, self.on_invalid_utf8)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def refuse_one_string(lines: object, name: str) -> None:
    """Refuse a string instead of a list of lines: Python would take each character as a line.

    Raises:
        TypeError: `lines`, the argument called `name`, is a string.
    """
    if isinstance(lines, (str, bytes)):
        raise TypeError(
            f"{name}: expected a list of lines, not one string; "
            'give [text], or text.split("\\n") where it holds several lines'
        )


GZIP_MAGIC = b"\x1f\x8b"


def decompressed(file: io.BufferedReader, path: Path) -> BinaryIO:
    """Return a stream of the decompressed content of a file.

    Args:
        file: the opened file.
        path: the file's path; its suffix tells the compression format, if any.

    Raises:
        NmtError: a compressed file is empty or not compressed, or a package is missing.
    """
    if path.suffix not in COMPRESSED:
        return file
    if path.suffix == ".zst" and zstd is None:
        raise NmtError(f"{path}: reading .zst needs a package; pip install backports.zstd")
    with named_damage(path):
        if file.peek(1)[:1] in (b"", b"\0"):  # gzip and xz would return an empty text
            raise EOFError
    # peek may return fewer bytes than asked for, hence this order of the two.
    if path.suffix == ".gz" and not GZIP_MAGIC.startswith(file.peek(2)[:2]):
        raise NmtError(f"{path}: not a gzip file; drop .gz from its name, or fetch it again")
    opened = {".gz": gzip.open, ".xz": _XzFile, ".zst": zstd and zstd.open}[path.suffix](file)
    # Without a buffer these modules read lines in Python, several times more slowly.
    return io.BufferedReader(cast(io.RawIOBase, opened), 1 << 18)


class _XzFile(io.RawIOBase):
    """The content of all streams of an .xz file.

    The module lzma ends without an error where a later stream is damaged, or follows padding.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stream = lzma.LZMADecompressor()

    def fileno(self) -> int:
        """Return the descriptor of the compressed file."""
        return self._file.fileno()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes, and return their number; 0 at the end of the file.

        Raises:
            EOFError: the file is truncated.
            lzma.LZMAError: the file is damaged.
        """
        data = b""
        while not data:
            block = b""
            if self._stream.eof:
                if not (block := self._next_stream()):
                    return 0
                self._stream = lzma.LZMADecompressor()
            elif self._stream.needs_input and not (block := self._file.read(1 << 16)):
                raise EOFError
            # Bounded, because a small block may decompress to gigabytes.
            data = self._stream.decompress(block, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """Return bytes of the next stream, after zeros of padding, if any; none at the end."""
        block = self._stream.unused_data or self._file.read(1 << 16)
        while block and not (block := block.lstrip(b"\0")):
            block = self._file.read(1 << 16)
        return block


def lines_of(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the lines of a stream with their line feeds, and without a byte order mark.

    Raises:
        NmtError: a line is longer than `MAX_LINE_BYTES`; `name` is the name of the stream.
    """
    # Bounded: a file without line feeds would be read into memory as one line.
    lines = iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(without_mark(lines), start=1):
        if len(line) > MAX_LINE_BYTES:
            raise NmtError(
                f"{name}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes; is this text, "
                "one sentence a line?"
            )
        yield line


def without_mark(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file without the byte order mark before the first."""
    first = next(lines, b"").removeprefix(codecs.BOM_UTF8)
    if first:
        yield first
    yield from lines


@contextmanager
def named_damage(path: Path) -> Iterator[None]:
    """Turn decompression errors into an :class:`NmtError` that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, _ZstdError) as error:
        if "too much memory" in str(error):  # Zstandard's error has no number
            raise NmtError(
                f"{path}: takes more than 128 MiB of memory, as after zstd --long=31; "
                "compress it again without --long"
            ) from None
        raise NmtError(
            f"{path}: the {COMPRESSED[path.suffix]} file is truncated or damaged; "
            "fetch or compress it again"
        ) from None


def decode(
    raw: bytes,
    name: str,
    first: int,
    on_invalid_utf8: OnInvalidUtf8 | None,
    setting: str = "--on-invalid-utf8 replace",
) -> list[str]:
    """Return the decoded lines, without line ends.

    Args:
        raw: lines as bytes, separated by line feeds.
        name: the stream's name in messages.
        first: number of the first line, for messages.
        on_invalid_utf8: see :class:`Lines`.
        setting: option that replaces invalid UTF-8, for messages.

    Raises:
        NmtError: the stream is UTF-16 or packed; or a byte is not UTF-8, and `on_invalid_utf8` is
            not "replace".
    """
    if first == 1:
        refuse_other_text(raw, name)
    try:
        # A whole block at once, several times faster than line by line.
        text = raw.decode("utf-8", "replace" if on_invalid_utf8 == "replace" else "strict")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        choice = f", or give {setting}" if on_invalid_utf8 else ""
        raise NmtError(
            f"{name}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; "
            f"convert it with iconv{choice}"
        ) from None
    # Not splitlines, which also splits at characters that may stand in a sentence.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return lines


PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz"}
"""Programs that pack files, by the first bytes of these files."""


def refuse_other_text(raw: bytes, name: str) -> None:
    """Refuse text that begins with a byte order mark of UTF-16, or is packed.

    Raises:
        NmtError: `raw`, the beginning of the stream called `name`, is such text.
    """
    for mark, program in PACKED.items():
        if raw.startswith(mark):
            raise NmtError(f"{name}: is packed by {program}; unpack it with {program} -dc")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise NmtError(f"{name}: is UTF-16, not UTF-8; convert it with iconv -f UTF-16 -t UTF-8")


def open_stdin() -> IO[bytes]:
    """Open stdin separately: at exit the interpreter waits for a reader of ``sys.stdin``.

    Raises:
        NmtError: stdin is closed.
    """
    if sys.stdin is None:
        raise NmtError("stdin is closed; name a file to read")
    # Descriptor 0 stays open, or the next file that is opened would become standard input.
    return os.fdopen(sys.stdin.fileno(), "rb", closefd=False)


def _arriving(lines: Iterator[bytes], most: int) -> Iterator[list[bytes]]:
    """Yield blocks of the lines that a thread has read; raise its error after the last line."""
    end = b""  # no line is empty: each has a line feed
    waiting: queue.Queue[bytes] = queue.Queue(most)
    failures: list[Exception] = []

    def read() -> None:
        """Put the lines into the queue, and an error into `failures`."""
        try:
            for line in lines:
                waiting.put(line)
        except Exception as error:  # the reader of the queue raises it
            failures.append(error)
        waiting.put(end)

    # A daemon: nothing can interrupt a thread that waits for a terminal.
    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        block = [waiting.get()]
        # What has arrived meanwhile joins the block: the busier the stream, the larger the batches.
        while len(block) < most and not waiting.empty():
            block.append(waiting.get())
        if ended := block[-1] == end:
            block.pop()
        if block:
            yield block
    if failures:
        raise failures[0]

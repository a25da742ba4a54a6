"""Text as lines: from files, compressed files, pipes, and hostile bytes."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.errors import NmtError
from nmt.io.lines import MAX_LINE_BYTES, PACKED, Lines, zstd

COMPRESSIONS = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}

HOSTILE = [
    "",
    "\0",
    "a\rb",
    "\u2028",
    "x\u2029y\u0085z",
    "\x0b\x0c\x1c\x1d\x1e",
    "\ufeffbom",
    "e\u0301",
]


def in_memory(content: bytes, on_invalid_utf8: str | None = None) -> Lines:
    return Lines(io.BytesIO(content), "text", on_invalid_utf8)  # type: ignore[arg-type]


@given(st.lists(st.text().map(lambda it: it.replace("\n", "").removesuffix("\r"))))
@example(HOSTILE)
def test_only_a_line_feed_ends_a_line(lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    lines[:1] = [line.removeprefix("\ufeff") for line in lines[:1]]
    assert in_memory(content).read() == lines
    assert [line for block in in_memory(content).blocks(2) for line in block] == lines
    windows = content.replace(b"\n", b"\r\n")
    assert in_memory(windows).read() == lines


def test_a_byte_order_mark_is_no_text_at_the_beginning_of_a_file() -> None:
    assert in_memory("\ufeffa\n\ufeffb\n".encode()).read() == ["a", "\ufeffb"]
    assert in_memory("\ufeff\na\n".encode()).read() == ["", "a"]
    assert [*in_memory("\ufeff".encode()).blocks(2)] == []
    assert [*in_memory("\ufeffa\nb\nc".encode()).blocks(2)] == [["a", "b"], ["c"]]


MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, *PACKED)


@given(st.binary().filter(lambda content: not content.startswith(MARKS)))
def test_any_bytes_give_as_many_lines_as_they_have_line_feeds(content: bytes) -> None:
    lines = in_memory(content, "replace").read()
    assert len(lines) == content.count(b"\n") + (content[-1:] not in (b"", b"\n"))


@pytest.mark.parametrize(
    ("on_invalid_utf8", "choice"), [(None, ""), ("error", ", or give --on-invalid-utf8 replace")]
)
def test_bytes_that_are_not_utf8_are_an_error_with_their_line(
    on_invalid_utf8: str | None, choice: str
) -> None:
    blocks = in_memory(b"a\nb\nc\xe9\n", on_invalid_utf8).blocks(2)
    assert next(blocks) == ["a", "b"]
    with pytest.raises(NmtError) as error:
        next(blocks)
    assert str(error.value) == f"text:3: byte 0xe9 is not UTF-8; convert it with iconv{choice}"


@for_each("on_invalid_utf8", [None, "error", "replace"])
@for_each(
    ("mark", "encoding"), [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")]
)
def test_text_in_utf16_is_named_with_the_command_that_converts_it(
    on_invalid_utf8: str | None, mark: bytes, encoding: str
) -> None:
    utf16 = mark + "für\n".encode(encoding)
    with pytest.raises(NmtError) as error:
        in_memory(utf16, on_invalid_utf8).read()
    assert str(error.value) == (
        "text: is UTF-16, not UTF-8; convert it with iconv -f UTF-16 -t UTF-8"
    )
    if on_invalid_utf8 != "replace":
        with pytest.raises(NmtError, match=r"^text:2: byte 0xf[ef] is not UTF-8;"):
            in_memory(b"a\n" + utf16, on_invalid_utf8).read()


@pytest.mark.parametrize("on_invalid_utf8", [None, "replace"])
def test_packed_text_under_another_name_is_refused(on_invalid_utf8: str | None) -> None:
    with pytest.raises(NmtError) as error:
        in_memory(gzip.compress(b"a\n"), on_invalid_utf8).read()
    assert str(error.value) == "text: is packed by gzip; unpack it with gzip -dc"


def test_a_line_that_would_fill_the_memory_is_an_error() -> None:
    with pytest.raises(NmtError) as error:
        in_memory(b"a\n" + b"x" * (MAX_LINE_BYTES + 1)).read()
    assert str(error.value) == (
        "text:2: the line is longer than 16,777,216 bytes; is this text, one sentence a line?"
    )
    assert len(in_memory(b"x" * MAX_LINE_BYTES).read()[0]) == MAX_LINE_BYTES


def test_a_compressed_file_is_read_as_a_plain_one(tmp_path: Path) -> None:
    for suffix, compress in COMPRESSIONS.items():
        path = tmp_path / f"a{suffix}"
        path.write_bytes(compress("ä\n\nb".encode()))
        for read in (Lines.read, lambda lines: next(lines.arriving(9))):
            assert read(Lines.open(path)) == ["ä", "", "b"]


@for_each(
    ("content", "count"),
    [(b"", 0), (b"a", 1), (b"a\nb\n", 2), (b"a\n\nb", 3), (b"x\n" * 2**20, 2**20)],
)
def test_lines_are_counted_before_they_are_read(tmp_path: Path, content: bytes, count: int) -> None:
    for suffix, compress in {"": bytes, ".gz": gzip.compress}.items():
        path = tmp_path / f"a{suffix}"
        path.write_bytes(compress(content))
        lines = Lines.open(path)
        assert lines.count() == count
        assert len(lines.read()) == count


def test_lines_that_cannot_be_read_twice_are_not_counted() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert Lines(os.fdopen(reading, "rb"), "pipe").count() is None
    assert Lines.open(Path("/dev/zero")).count() is None


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: b"", lambda data: bytes(len(data) // 4 * 4)],
    ids=["cut", "empty", "zeros"],
)
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_damaged_file_is_named(
    tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(damage(COMPRESSIONS[suffix](os.urandom(9999))))
    with pytest.raises(NmtError) as error:
        list(Lines.open(path)._raw())
    kind = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}[suffix]
    assert str(error.value) == (
        f"{path}: the {kind} file is truncated or damaged; fetch or compress it again"
    )


def test_all_streams_of_a_compressed_file_are_read(tmp_path: Path) -> None:
    for suffix, compress in COMPRESSIONS.items():
        path = tmp_path / f"a{suffix}"
        path.write_bytes(compress(b"a\nb") + compress(b"c\n") + compress(b"d\n"))
        assert Lines.open(path).read() == ["a", "bc", "d"]
    padding = bytes(1 << 17)
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\n") + padding + lzma.compress(b"b\n") + padding)
    assert Lines.open(path).read() == ["a", "b"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_damage_of_a_later_stream_is_an_error(tmp_path: Path, suffix: str) -> None:
    stream, path = COMPRESSIONS[suffix](os.urandom(999)), tmp_path / f"a{suffix}"
    for damaged in (bytes([stream[0] ^ 1]) + stream[1:], stream[:-9], b"behind"):
        path.write_bytes(stream + damaged)
        with pytest.raises(NmtError, match="file is truncated or damaged"):
            list(Lines.open(path)._raw())


def test_a_zstd_file_with_a_large_window_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    path.write_bytes(compressor.compress(b"a\n") + compressor.flush())
    with pytest.raises(NmtError, match=r"a.zst: takes more than 128 MiB of memory, as after zstd"):
        Lines.open(path).read()


def test_text_whose_name_ends_with_gz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_text("Just text.\n")
    with pytest.raises(NmtError) as error:
        list(Lines.open(path)._raw())
    assert str(error.value) == (
        f"{path}: not a gzip file; drop .gz from its name, or fetch it again"
    )


def pipe(write: Callable[[int], object]) -> Iterator[list[str]]:
    """Blocks of at most two lines of what a thread writes into a pipe."""
    reading, writing = os.pipe()

    def run() -> None:
        write(writing)
        os.close(writing)

    threading.Thread(target=run, daemon=True).start()
    return Lines(os.fdopen(reading, "rb"), "pipe").arriving(2)


def test_a_full_pipe_fills_blocks() -> None:
    taken = pipe(lambda to: os.write(to, b"1\n2\n3\n4\n5\n"))
    first = next(taken)
    deadline = time.monotonic() + 5
    while any(it.daemon for it in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)  # the reader waits once two lines wait, or has ended
        if len(first) == 2:
            break
    rest = list(taken)
    assert [line for block in (first, *rest) for line in block] == list("12345")
    assert all(len(block) <= 2 for block in rest)


def test_a_line_in_a_pipe_is_given_before_the_next_is_written() -> None:
    go_on = threading.Event()

    def write(to: int) -> None:
        os.write(to, b"one\n")
        assert go_on.wait(10)
        os.write(to, b"two\n")

    taken = pipe(write)
    assert next(taken) == ["one"]
    go_on.set()
    assert list(taken) == [["two"]]


def test_an_endless_pipe_is_read_as_it_is_used() -> None:
    written = []

    def write(to: int) -> None:
        try:
            for _ in range(1000):
                written.append(os.write(to, b"x" * 4095 + b"\n"))
        except BrokenPipeError:
            pass

    assert [len(line) for block in islice(pipe(write), 2) for line in block][:2] == [4095, 4095]
    assert sum(written) < 300_000  # the pipe's own 64 KiB, a buffer, and a few lines


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_an_error_of_reading_is_no_end_of_the_input(error: Exception) -> None:
    class Broken(io.BytesIO):
        fileno = staticmethod(lambda: os.pipe()[0])  # type: ignore[assignment]

        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            if not line:
                raise error
            return line

    taken = Lines(Broken(b"a\n"), "pipe").arriving(2)
    assert next(taken) == ["a"]
    with pytest.raises(type(error)) as raised:
        next(taken)
    assert raised.value is error

"""The contract of the pipe: N lines in, N lines out, in order, whatever the bytes.

A stub stands for the model, so that it is the pipe that is tested, and it can be tested at length.
"""

from __future__ import annotations

import dataclasses
import io
import os
import random
import resource
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from table_model import TableModel
from torch import Tensor

from nmt.cli.translate.io import translate_stream
from nmt.data.vocabulary import EOS
from nmt.inference import SearchConfig, Translator
from nmt.inference.request import Counts
from nmt.io.lines import Lines
from nmt.models.base import State
from nmt.runtime.distributed import World
from nmt.search import strategies
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords

REAL = Path(__file__).read_text(encoding="utf-8").splitlines()


class Copy(TableModel):
    """Gives the source back, with a copy's few tensor operations a step."""

    def start(self, source: Tensor) -> State:
        return _Copied(source)  # type: ignore[return-value]

    def step(self, tokens: Tensor, state: State) -> Tensor:
        assert isinstance(state, _Copied)
        wanted = state.source[:, min(state.position, state.source.shape[1] - 1)]
        state.position += 1
        logits = torch.zeros(*tokens.shape, self.vocabulary)
        return logits.scatter_(-1, wanted.where(wanted > 0, EOS)[:, None, None], 50.0)


class _Copied:
    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.position = 0

    def select(self, rows: Tensor) -> None:
        self.source = self.source[rows[:, 0]]


@pytest.fixture(scope="module")
def copier() -> Translator:
    """Copies lines, but for what the subwords do to white space."""
    training = SubwordTraining(vocab_size=400, normalization="identity")
    subwords = Subwords(train_subwords(REAL, training), num_threads=1)
    config = SearchConfig(strategy=strategies["greedy"], max_source_length=256, window=512)
    return Translator(Copy(0, subwords.target_size), subwords, config)


def hostile_line(draw: random.Random) -> bytes:
    """Bytes without a line feed: of any kind, of any plane, of real text, short or long."""
    kind = draw.randrange(8)
    if kind == 0:
        return b""
    if kind == 1:
        return draw.randbytes(draw.randrange(40)).replace(b"\n", b"")
    if kind == 2:
        marks = "\0\r\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x85\ufeff \t\u3000\u200b\ufffd\U0001f600"
        return "".join(draw.choices(marks + "ab", k=draw.randrange(12))).encode()
    if kind == 3:
        points = (draw.randrange(0x110000) for _ in range(draw.randrange(12)))
        return (
            "".join(chr(it) for it in points if not 0xD800 <= it < 0xE000)
            .encode()
            .replace(b"\n", b"")
        )
    if kind == 4 and draw.random() < 0.002:
        return ("word, and another. " * 6000)[:100_000].encode()
    return draw.choice(REAL).encode()


def through(translator: Translator, content: Iterator[bytes]) -> bytes:
    """What comes out of the command's own loop, fed through a pipe."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as to:
            to.writelines(content)

    threading.Thread(target=write, daemon=True).start()
    out = io.BytesIO()
    translate_stream(translator, Lines(os.fdopen(reading, "rb"), "pipe", "replace"), out, World())
    return out.getvalue()


def check_hostile_lines(translator: Translator, count: int, seed: int) -> None:
    draw = random.Random(seed)
    # Numbers stand between the hostile lines: if one is lost or moved, they are out of step.
    content = [
        (hostile_line(draw) if number % 2 else b"%d" % number) + b"\n" for number in range(count)
    ]
    lines = through(translator, iter(content)).split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == count
    assert all(line == b"%d" % number for number, line in enumerate(lines) if not number % 2)
    for line, copied in zip(content, lines, strict=True):
        if not line.decode("utf-8", "replace").strip():
            assert copied == b""


@pytest.mark.parametrize("seed", range(2))
def test_hostile_lines_come_out_as_many_and_in_order(copier: Translator, seed: int) -> None:
    check_hostile_lines(copier, 1_000, seed)


@pytest.mark.full
def test_a_hundred_thousand_hostile_lines_come_out_in_order(copier: Translator) -> None:
    check_hostile_lines(copier, 10_000, 7)
    before = peak_memory_mb()
    check_hostile_lines(copier, 100_000, 8)
    assert peak_memory_mb() - before < 100  # the text itself, and what comes out of it


@pytest.mark.parametrize("on_long_line", ["cut", "split"])
def test_a_line_of_many_characters_is_cut_or_split_and_counted(
    copier: Translator, on_long_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(copier.config, on_long_line=on_long_line)  # type: ignore[arg-type]
    translator = Translator(copier.model, copier.subwords, config)
    long = ("One word, and another. " * 5000)[:20_000].rstrip()
    first, copied, last = through(
        translator, iter([f"first\n{long}\nlast\n".encode()])
    ).splitlines()
    assert (first, last) == (b"first", b"last")
    warning = capsys.readouterr().err.splitlines()[1]
    if on_long_line == "cut":
        assert long.encode().startswith(copied)
        assert warning.startswith("nmt: warning: lines cut to 256 pieces: 1;")
    else:
        assert copied == long.encode()
        assert warning == "nmt: warning: lines split into parts of at most 256 pieces: 1"


class Counter:
    """A translator that does nothing, for streams that are longer than a model's patience."""

    windows_ahead = 0

    def __init__(self) -> None:
        self.config = SearchConfig()
        self.counts = Counts()

    def in_documents(self, blocks: Iterable[list[str]]) -> Iterable[list[str]]:
        return blocks

    def translate(self, lines: list[str]) -> list[str]:
        return lines


class Null(io.RawIOBase):
    """Counts the lines written to it, and keeps none."""

    lines = 0

    def write(self, data: object) -> int:
        self.lines += 1
        return len(data)  # type: ignore[arg-type]


def check_stream(count: int) -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as to:
            for _ in range(count // 1000):
                to.write(b"a line of some length, as sentences have\n" * 1000)

    threading.Thread(target=write, daemon=True).start()
    before, null = peak_memory_mb(), Null()
    translate_stream(Counter(), Lines(os.fdopen(reading, "rb"), "pipe"), null, World())  # type: ignore[arg-type]
    assert null.lines == count
    assert peak_memory_mb() - before < 20


def peak_memory_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def test_a_long_stream_needs_no_more_memory_than_a_short_one() -> None:
    check_stream(100_000)


@pytest.mark.slow
def test_ten_million_lines_need_no_more_memory_than_a_few() -> None:
    check_stream(10_000_000)

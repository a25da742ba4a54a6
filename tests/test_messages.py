"""Messages are single lines, and lines of several processes do not mix."""

from __future__ import annotations

import ast
import io
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nmt
from nmt.evaluation import metrics
from nmt.messages import LONGEST_DURATION, LONGEST_MESSAGE, duration, one_line, say, warn
from nmt.training.reporting.report import TrainingReport


class Pipe(io.RawIOBase):
    """A raw stream that keeps the bytes of each write, as a pipe shared by processes gets them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if data:  # the system does nothing for an empty write
            self.writes.append(bytes(data))
        return len(data)


def _report(message: str) -> None:
    TrainingReport(Path("none.jsonl"), max_updates=1, first=0).say(message)


def _warn_as_sacrebleu(message: str) -> None:
    metrics.Teller().emit(logging.LogRecord("", logging.WARNING, "", 1, message, None, None))


@pytest.mark.parametrize("print_line", [say, warn, _report, _warn_as_sacrebleu])
def test_a_message_and_its_newline_are_one_write(
    print_line: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Pipe()
    unbuffered = io.TextIOWrapper(pipe, "utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stderr", unbuffered)  # as with PYTHONUNBUFFERED=1
    print_line("rank 1 is late")
    assert len(pipe.writes) == 1
    assert pipe.writes[0].endswith(b"rank 1 is late\n")


def test_no_module_prints_messages_with_print() -> None:
    """`print` writes the newline by itself, so that other processes may write before it."""
    for path in Path(nmt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
                assert "file" not in [keyword.arg for keyword in node.keywords], path


def test_a_long_message_is_cut() -> None:
    assert one_line("é" * LONGEST_MESSAGE) == "é" * LONGEST_MESSAGE
    assert one_line("é" * (LONGEST_MESSAGE + 1)) == "é" * LONGEST_MESSAGE + " ..."


def test_a_duration_has_days_and_the_longest_one_an_end() -> None:
    assert str(duration(59.6)) == "0:01:00"
    assert str(duration(90_000)) == "1 day, 1:00:00"
    assert duration(math.inf) == LONGEST_DURATION

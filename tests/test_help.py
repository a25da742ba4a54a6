"""Help at a terminal and elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from for_each import for_each

from nmt.cli.app import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def shown(command: str, columns: int) -> str:
    """What a terminal shows of the help of a command, without colours."""
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "nmt", *command.split(), "--help"],
        stdout=slave, stdin=slave, env=environment,
    ):  # fmt: skip
        os.close(slave)
        read = b""
        try:
            while block := os.read(master, 1 << 16):
                read += block
        except OSError:  # the other end is closed
            pass
    os.close(master)
    return re.sub(r"\x1b\[[\d;]*m", "", read.decode()).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
@pytest.mark.parametrize("command", ["translate", "train", "inspect"])
def test_help_has_panels_at_a_terminal(
    command: str, columns: int, nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(command, columns)
    widths = {len(line) for line in text.splitlines() if line[0:1] in ("│", "╭", "╰")}
    assert widths == {min(columns, 100)}
    panels = re.findall(r"^╭─ (.*?) ─+╮\r$", text, re.M)
    parameters = COMMANDS[command].params
    assert panels == list(
        dict.fromkeys(each.rich_help_panel or "Options" for each in parameters)
    ) + (["Options"] if parameters[0].rich_help_panel else [])
    monkeypatch.setenv("COLUMNS", str(columns))
    plain_text = nmt(command, "--help").out
    assert not set(plain_text) & {"─", "│", "\x1b"}
    words, plain_words = (re.sub(r"[│╭╮╰╯-]", " ", part).split() for part in (text, plain_text))
    assert set(plain_words) - set(words) <= {"Arguments:", "Options:"}


def test_the_program_has_panels_at_a_terminal() -> None:
    text = shown("", 80)
    for name, command in COMMANDS.items():
        assert re.search(rf"│ {name} +{command.get_short_help_str(200)[:20]}", text)


@for_each("command", ["", "translate", "train", "preprocess", "score"])
def test_help_imports_no_library_that_takes_long(command: str) -> None:
    program = [sys.executable, "-X", "importtime", "-m", "nmt", *command.split(), "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "typer" in packages
    assert not packages & {"fastapi", "numpy", "pydantic", "sacrebleu", "sentencepiece", "torch"}

"""The streams: talk goes to stderr, so that a pipeline can trust stdout; stdin is read once."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO

import typer

from nmt.errors import NmtError

LONGEST_MESSAGE = 1000
"""Characters of a message; what a damaged file says about itself may be longer."""


def write_utf8(*streams: TextIO) -> None:
    """Have streams write UTF-8 in every locale; spell out what UTF-8 cannot hold."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def printable(line: str) -> str:
    """Return the line with all that a terminal might obey spelt out as escapes."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in line)


def show(lines: str) -> None:
    """Print lines of a result that is for people; programs are given JSON."""
    print("\n".join(map(printable, lines.split("\n"))))


def one_line(message: str) -> str:
    """Return a message fit for a terminal: escapes are spelt out, and a long one is cut."""
    line = printable(message)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]} ..."


def say(message: str) -> None:
    """Prints one line for people."""
    print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Prints one line about something that was not as it should be, but does not stop the work."""
    say(one_line(f"nmt: warning: {message}"))


def check_stdin(*inputs: Path | None) -> None:
    """Refuses a command line by which several inputs would be stdin."""
    if inputs.count(Path("-")) > 1:
        raise typer.BadParameter("only one input can be -, which is stdin")


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Refuses an output that would take the place of one of the inputs, which exist."""
    if output is None or not output.is_file():
        return
    for path in inputs:
        if path is None:
            continue
        read = os.fstat(sys.stdin.fileno()) if str(path) == "-" else path.stat()
        if os.path.samestat(read, output.stat()):
            raise NmtError(f"--output {output}: is one of the inputs; choose another file")

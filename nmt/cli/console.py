"""Standard streams: UTF-8, results on stdout or in a file, and checks of inputs and outputs."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from nmt.errors import NmtError
from nmt.io.lines import open_stdin
from nmt.messages import printable, say

STDOUT = "stdout"
"""Name of standard output in messages."""

OutputFlag = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write.  [default: stdout]",
        show_default=False,
    ),
]


def write_utf8(*streams: TextIO) -> None:
    """Make streams write UTF-8 in every locale, with escapes for lone surrogates."""
    for stream in streams:
        # Other streams, such as a notebook's, cannot be reconfigured.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def show(lines: str) -> None:
    """Print a result for people, with escapes for control characters; programs read JSON."""
    print("\n".join(map(printable, lines.split("\n"))))


def check_stdin(*inputs: Path | None) -> None:
    """Raise a BadParameter if several inputs are stdin."""
    if inputs.count(Path("-")) > 1:
        raise typer.BadParameter("only one input can be -, which is stdin")


def await_stdin(*inputs: Path | None) -> None:
    """Check the inputs, and print a message if lines are awaited from a terminal."""
    check_stdin(*inputs)
    # stdin is None where the shell has closed it.
    if Path("-") in inputs and sys.stdin and sys.stdin.isatty():
        say("reads lines from the terminal; type them, and Ctrl-D at the end")


def check_terminal(output: Path | None, example: str) -> None:
    """Raise a BadParameter if a page or an image would be written to a terminal."""
    if output is None and sys.stdout.isatty():
        raise typer.BadParameter(
            f"the output is not for a terminal; give --output {example}, or redirect stdout"
        )


def check_output(output: Path | None, *inputs: Path | None, flag: str = "--output") -> None:
    """Raise an NmtError if the output of a flag would overwrite an input; inputs exist."""
    if output is None or not output.is_file():
        return
    for path in inputs:
        if path is None:
            continue
        # A redirected stdin may be the very file that --output would replace.
        read = os.fstat(open_stdin().fileno()) if str(path) == "-" else path.stat()
        if os.path.samestat(read, output.stat()):
            raise NmtError(f"{flag} {output}: is one of the inputs; choose another file")

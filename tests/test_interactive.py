"""``nmt translate`` at a terminal answers each line as soon as it is typed."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

from nmt.cli.app import main


def test_a_typed_line_is_translated_before_the_next_one(trained: Path) -> None:
    process, terminal = at_a_terminal("translate", "--model", str(trained))
    try:
        shown(terminal, "ready; type a line to translate, and Ctrl-D at the end\n")
        for line in ("one two", "three"):
            os.write(terminal, f"{line}\n".encode())
            shown(terminal, f"{line}\n")  # the echo
            assert shown(terminal, "\n")
        os.write(terminal, b"\x04")
        shown(terminal, "translated 2 lines")
        assert os.waitpid(process, 0)[1] == 0
    finally:
        os.close(terminal)  # which ends the process, if it has not ended


def at_a_terminal(*arguments: str) -> tuple[int, int]:
    """Run a command in a new process with a terminal; returns both, the terminal as a file."""
    process, terminal = pty.fork()
    if process:
        return process, terminal
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["TERM"] = "dumb"
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["nmt", *arguments]
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os._exit(status)


def shown(terminal: int, end: str) -> str:
    """What the terminal shows before `end`; the rest waits for the next call."""
    text = ""
    while not text.endswith(end):
        text += os.read(terminal, 1).decode("utf-8", "replace").replace("\r", "")
    return text.removesuffix(end)

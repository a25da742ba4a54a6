"""Ctrl-C before a command runs: while the command line and the command are imported."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = "interrupted"


def end_at_interrupt() -> None:
    """Let Ctrl-C end the process with one line and status 130; a library could lose an error."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _: object) -> None:
    if sys.stderr is not None:  # closed by the shell
        os.write(sys.stderr.fileno(), f"nmt: error: {INTERRUPTED}\n".encode())
    os._exit(128 + number)

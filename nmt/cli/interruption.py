"""Ctrl-C while modules are imported, and SIGTERM while a command runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nmt.errors import TerminatedError

INTERRUPTED = "interrupted"


def end_at_interrupt() -> None:
    """Let Ctrl-C end the process with status 130; a library may swallow an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that partial files are removed.

    Raises:
        TerminatedError: the signal arrived.
    """
    process = os.getpid()

    def end(number: int, _: object) -> None:
        """Raise the error once; a worker process, which inherits the handler, ends at once."""
        is_worker = os.getpid() != process
        # A second signal must not interrupt the clean-up of the first.
        signal.signal(number, signal.SIG_DFL if is_worker else signal.SIG_IGN)
        if is_worker:
            os.kill(os.getpid(), number)
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: object) -> None:
    if sys.stderr is not None:  # closed by the shell
        # Not print, which fails if the signal interrupts another print.
        os.write(sys.stderr.fileno(), f"nmt: error: {INTERRUPTED}\n".encode())
    os._exit(128 + number)

"""A command in a forked process with bounded memory and time, and its outcome.

The parent has imported everything, so that a command costs a fork and not an interpreter.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10.0
"""Time limit of a command."""

BYTES = 2 << 30
"""Memory that a command may ask for, beyond that of the parent."""

LONGEST_FILE = 64 << 20
"""Size limit of the files that a command writes."""

LONGEST_LINE = 2000
"""Characters of the longest line of stderr that a person would read."""

OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|allocate memory|out of memory|memory .* is full|OutOfMemory", re.I
)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    """Exit status, or minus the signal that ended the process; None where it was out of time."""
    out: bytes
    err: str
    timed_out: bool = False

    @property
    def fault(self) -> str | None:
        """The name of the fault where the command failed otherwise than with one line."""
        if self.timed_out:
            return "hang"
        if self.status != 0 and OUT_OF_MEMORY.search(self.err):
            return "flood"
        if self.status < 0 or "Traceback (most recent call last)" in self.err:
            return "traceback"
        lines = self.err.split("\n")
        if self.status != 0:
            errors = [line for line in lines if line.startswith("nmt: error: ")]
            if len(errors) != 1 or lines[-2:] != [*errors, ""]:
                return "traceback"
        is_readable = all(line.isprintable() and len(line) <= LONGEST_LINE for line in lines)
        return None if is_readable else "unreadable"


def run(
    command: Callable[[], None],
    directory: Path,
    stdin: Path | None = None,
    seconds: float = SECONDS,
    memory: int = BYTES,
) -> Done:
    """Runs a function as a process of its own, and whatever it has started with it.

    Args:
        command: ends with SystemExit, as the main function of a program does.
        directory: where it runs; its streams become files beside it.
        stdin: what it reads; None for nothing.
        seconds: after which it is killed.
        memory: address space in bytes that it may use, beyond that of this process.
    """
    streams = [directory.with_name(f"{directory.name}.{name}") for name in ("out", "err")]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            os.chdir(directory)
            _redirect(stdin or Path(os.devnull), *streams)
            _limit(memory)
            status = _status(command)
        finally:
            os._exit(status)
    descriptor = os.pidfd_open(pid)
    ended, _, _ = select.select([descriptor], [], [], seconds)
    os.close(descriptor)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    out, err = (stream.read_bytes() for stream in streams)
    return Done(os.waitstatus_to_exitcode(status), out, err.decode("utf-8", "replace"), not ended)


def _redirect(*streams: Path) -> None:
    for descriptor, path in enumerate(streams):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    streams_of_python = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    for descriptor, (name, mode) in enumerate(streams_of_python):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = os.fdopen(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)
        setattr(sys, name, stream)


def _limit(memory: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    for limit, most in (
        (resource.RLIMIT_AS, pages * resource.getpagesize() + memory),
        (resource.RLIMIT_FSIZE, LONGEST_FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError instead


def _status(command: Callable[[], None]) -> int:
    status = 0
    try:
        command()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status

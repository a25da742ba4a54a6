"""Messages for people, on stderr: each line is one write, so lines of processes do not mix."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

LONGEST_MESSAGE = 1000
"""Characters of a message; text from a damaged file may be longer."""

LONGEST_DURATION = timedelta(days=999_999_999)
"""Longest duration that is shown; a `timedelta` overflows one day later."""


def say(message: str) -> None:
    """Print a message on stderr, together with its newline in one write."""
    with surviving_stderr():
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()


@contextmanager
def surviving_stderr() -> Iterator[None]:
    """Suppress errors of writing to stderr, and redirect it to null if its reader is gone."""
    try:
        yield
    except OSError as error:
        # The reader of a pipe is gone, or the terminal has closed.
        if error.errno in (errno.EPIPE, errno.EIO):
            redirect_to_null(sys.stderr.fileno())


def redirect_to_null(*descriptors: int) -> None:
    """Redirect file descriptors to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def warn(message: str) -> None:
    """Print a warning on stderr, as one line."""
    say(one_line(f"nmt: warning: {message}"))


def one_line(message: str) -> str:
    """Return a message that is safe for a terminal: with escapes, and cut if long."""
    line = printable(message)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]} ..."


def duration(seconds: float) -> timedelta:
    """Return a duration to be shown: in whole seconds, at most `LONGEST_DURATION`."""
    return timedelta(seconds=round(min(seconds, LONGEST_DURATION.total_seconds())))


def printable(line: str) -> str:
    """Return the line with control characters, which a terminal might obey, as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in line
    )


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 lacks, as escapes.

    Python reads the bytes of a file name that are not UTF-8 as lone surrogates.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

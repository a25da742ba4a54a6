"""Talk: everything for people goes to stderr, so that a pipeline can trust stdout."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Prints one line for people."""
    print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Prints one line about something that was not as it should be, but does not stop the work."""
    say(f"nmt: warning: {message}")

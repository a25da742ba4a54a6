"""Files that sacreBLEU fetches: each whole or not at all, and no attempt without an end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt.io.files import locked

TIMEOUT = 60.0
"""Seconds without an answer after which a server counts as unreachable."""


@contextmanager
def fetching(root: Path, name: str) -> Iterator[None]:
    """Remove the files that a failed or interrupted attempt leaves in a directory.

    sacreBLEU takes any existing file for a complete one. Other processes that fetch wait for the
    end of the attempt, so each finds all files of the directory or none.

    Args:
        root: directory of all that sacreBLEU fetches.
        name: the directory of the attempt in `root`; it may hold others, as ``wmt14`` holds
            ``wmt14/full``.
    """
    home = root / name
    root.mkdir(parents=True, exist_ok=True)
    with locked(root, f"fetches to {root}"):
        before, timeout = set(home.rglob("*")), socket.getdefaulttimeout()
        socket.setdefaulttimeout(TIMEOUT)
        try:
            yield
        except BaseException:
            for path in set(home.rglob("*")) - before:
                if path.is_file():
                    path.unlink()
            raise
        finally:
            socket.setdefaulttimeout(timeout)


def reason(error: BaseException) -> str:
    """Return why an attempt failed, on one line."""
    if isinstance(error, SystemExit):
        return "the downloaded file does not match its checksum"
    return " ".join(str(getattr(error, "reason", error)).split())

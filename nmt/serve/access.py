"""Who may use the server, and how much."""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from nmt.errors import NmtError

MOST_CLIENTS = 100_000
"""Clients whose rate is remembered; those seen longest ago are forgotten."""


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of all that wait."""

    bytes: int = 4_000_000
    """Bytes of a request's body."""
    lines: int = 2000
    """Lines of a request."""
    characters: int = 5000
    """Characters of a line."""
    queue: int = 10_000
    """Lines that wait, of all clients."""
    seconds: float = 120.0
    """Seconds after which an answer that is not there is given up."""
    body_seconds: float = 10.0
    """Seconds within which a request's body must arrive."""
    header_seconds: float = 10.0
    """Seconds within which the headers of a request must arrive, also on a new connection."""
    lines_per_minute: int | None = None
    """Lines of a client in a minute; None for no limit."""


class Keys:
    """The API keys of a file, one a line; as hashes, so that comparing takes a constant time."""

    def __init__(self, path: Path | None) -> None:
        """Read the keys; None lets everybody in.

        Raises:
            NmtError: the file has no key, or one that begins with "#", or cannot be read.
        """
        self.is_open = path is None
        self._hashes: set[bytes] = set()
        if path is not None:
            self._hashes = {_hash(key) for key in _keys(path)}
            if not self._hashes:
                raise NmtError(f"{path}: holds no key; write one on each line")

    def admit(self, key: object) -> bool:
        """Return whether the key of a request, which may be no text, is one of the file."""
        return self.is_open or (isinstance(key, str) and _hash(key) in self._hashes)


def _keys(path: Path) -> Iterator[str]:
    """Yield the keys of a file, whose comments begin with "# "."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise NmtError(f"{path}: is not UTF-8; write one key on each line") from None
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if re.match(r"#\S", key):  # which admitted clients if it were a key
            raise NmtError(
                f'{path}, line {number}: a key cannot begin with "#"; begin a comment with "# "'
            )
        if key and not key.startswith("#"):
            yield key


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


@dataclass
class Rates:
    """Lines of each client in a minute, as buckets that are filled at a constant rate."""

    lines_per_minute: int | None
    buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """For each client, lines left, and when that was."""

    def spend(self, client: str, lines: int) -> int:
        """Count lines of a client.

        Returns:
            0, or the seconds after which the client may send so many lines; nothing was counted.
        """
        if self.lines_per_minute is None:
            return 0
        now, rate = time.monotonic(), self.lines_per_minute / 60
        left, then = self.buckets.pop(client, (float(self.lines_per_minute), now))
        left = min(float(self.lines_per_minute), left + rate * (now - then))
        wanted = min(lines, self.lines_per_minute)  # else it could never be
        is_allowed = left >= wanted
        self.buckets[client] = (left - lines if is_allowed else left, now)
        if len(self.buckets) > MOST_CLIENTS:
            self.buckets.popitem(last=False)
        return 0 if is_allowed else ceil((wanted - left) / rate)


def admitting(admit: Callable[[Request], None]) -> type[APIRoute]:
    """Return a class of routes that admit a client before the body of its request is parsed.

    Args:
        admit: raises an error for a client that may not.
    """

    class Admitting(APIRoute):
        """A route for clients that may."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the function that answers a request."""
            answer = super().get_route_handler()

            async def answer_admitted(request: Request) -> Response:
                admit(request)
                return await answer(request)

            return answer_admitted

    return Admitting

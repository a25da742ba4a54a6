"""Who may use the server, and how much."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from nmt.errors import NmtError


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

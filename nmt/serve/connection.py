"""Connections that do not wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

LOST = "is_lost"
"""Name in the state of a request, once its connection is lost."""


def is_lost(request: Request) -> bool:
    """Return whether the client of a request went away; thousands of its lines may still wait."""
    return bool(getattr(request.state, LOST, False))


class Connection(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive in time.

    After an answer, uvicorn waits for some seconds until the next request begins. This class limits
    the time to the end of its headers, and that of a new connection.
    """

    header_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first headers."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._stop()
        if self.scope is not None:
            self.scope["state"][LOST] = True

    def _watch(self) -> None:
        """Start the time if headers are missing and it does not run; stop it if none is."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

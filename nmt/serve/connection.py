"""Connections that do not wait for ever."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import h11
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.serve.bodies import RefusedError

INVALID = "the request is not valid HTTP/1.1; check headers such as Host and Content-Length"
"""Refusal of what h11 cannot read."""
LOST = "is_lost"
"""Name in the state of a request, once its connection is lost."""


def is_lost(request: Request) -> bool:
    """Return whether the client of a request went away; thousands of its lines may still wait."""
    return bool(getattr(request.state, LOST, False))


class Connection(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive in time.

    After an answer, uvicorn waits for some seconds until the next request begins. This class limits
    the time to the end of its headers, and that of a new connection. An answer that the application
    does not end is cut off.
    """

    header_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = partial(self._answer, self.app)

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

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, unless an answer has begun; close the connection."""
        is_head = self.scope is not None and self.scope.get("method") == "HEAD"
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refusal = RefusedError(400, INVALID).response()
            headers = [*refusal.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=400, reason=b"Bad Request", headers=headers),
                h11.Data(data=b"" if is_head else bytes(refusal.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer; cut off an answer that has begun and has no end."""
        cycle = self.cycle
        await app(scope, receive, send)
        if cycle.response_started and not cycle.response_complete:
            cycle.disconnected = True  # else uvicorn logs an error of the server
            self.transport.close()

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

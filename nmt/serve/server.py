"""The process of the server: its socket, signals, connections and log."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import quote

import anyio
import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.errors import NmtError
from nmt.messages import say, warn
from nmt.serve.app import application
from nmt.serve.limits import DISCONNECTED, RefusedError
from nmt.serve.service import Service

GRACE = 30
"""Seconds that accepted requests have after SIGTERM."""
KEEP_ALIVE = 75
"""Seconds for which a connection stays open after an answer. A proxy must close its connections
earlier (nginx after 60 seconds), or it would send requests on closed connections."""
STALLED = 120
"""Seconds after which a client that reads nothing, or has vanished, is cut off."""
LINGER = 2
"""Seconds for which the rest of a body is discarded after a refusal."""
LONGEST_CLIENT, LONGEST_METHOD, LONGEST_PATH = 45, 20, 200
"""Most characters of a client's address, a method and a path in the log."""
INVALID = "the request is not valid HTTP/1.1; check headers such as Host and Content-Length"
"""Refusal of a request that h11 cannot read."""


def run(
    service: Service,
    host: str,
    port: int,
    origins: Sequence[str] = (),
    log: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        service: the translation service.
        host: address to listen at.
        port: port, or 0 for any free port.
        origins: origins whose pages may use the server.
        log: whether to log client, method, path and status of each request.
        allowed_hosts: hosts that requests may name, next to `host` and localhost.

    Raises:
        NmtError: the address cannot be listened at.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a file for each connection
    # A client may name the host or its address.
    app = application(service, origins, (host, _address(host), *allowed_hosts))
    config = uvicorn.Config(
        LoggingMiddleware(app) if log else app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # its lines would hold the query
        http=Connection,  # based on h11, which limits the bytes of headers; httptools does not
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=KEEP_ALIVE,
        ws="none",
    )
    # On the class, because uvicorn makes the connections.
    Connection.header_seconds = service.limits.header_seconds
    server = _Server(config, service)
    try:
        sockets = [listen(host, port)]
        name, number = sockets[0].getsockname()[:2]
        server.address = f"http://{f'[{name}]' if ':' in name else name}:{number}"
        server.run(sockets=sockets)
    finally:
        service.models.close()


def _address(host: str) -> str:
    """Return the numeric address of a host, or the host if it has none."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return host


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        NmtError: the address cannot be listened at.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        reason, _, _ = (error.strerror or str(error)).partition(" (while ")  # Python adds a call
        raise NmtError(
            f"cannot listen at {host}, port {port}: {reason}; choose another --host or --port"
        ) from None
    # A body would wait for the acknowledgement of its headers. Accepted connections inherit this.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * STALLED)
    return listening


class Connection(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive in time.

    Uvicorn limits the time from an answer to the beginning of the next request. This class limits
    the time to the end of its headers, also on a new connection. If the application leaves an
    answer unfinished, the connection is cut.
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
        # A timer that is left would hold the connection in memory until it fires.
        self._stop()
        if self.scope is not None:
            self.scope["state"][DISCONNECTED] = True

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, unless an answer has begun; close the connection."""
        # An answer to HEAD has no body.
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
        """Let the application answer; cut off an unfinished answer."""
        cycle = self.cycle

        async def closing(message: Message) -> None:
            """Send a message; a refusal before the end of the body closes the connection."""
            is_early = self.conn.their_state is h11.SEND_BODY
            if message["type"] == "http.response.start":
                if is_early and message["status"] >= 400:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            elif is_early and cycle.response_started and not message.get("more_body"):
                await send({**message, "more_body": True})
                await _discard(receive)
                message = {**message, "body": b""}
            await send(message)

        await app(scope, receive, closing)
        # After the last message uvicorn may have begun the next request of the connection.
        is_newest = self.cycle is cycle
        if is_newest and cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        if cycle.response_started and not cycle.response_complete:
            cycle.disconnected = True  # else uvicorn logs an error of the server
            self.transport.close()

    def _watch(self) -> None:
        """Start the timer if headers are missing; stop it if no headers are missing."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LoggingMiddleware:
    """Logs time, client, method, path and status of each answer of an application.

    The path has no query, which may hold texts and keys.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        async def logged(message: Message) -> None:
            """Send a message; log the request with its status."""
            if message["type"] == "http.response.start":
                say(_line(scope, message["status"]))
            await send(message)

        await self.app(scope, receive, logged)


class _Server(uvicorn.Server):
    """Prints the address when ready, and loads the models again on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self.address = ""
        self.loading: asyncio.Task[None] | None = None
        self.is_outdated = False  # since the loading under way began

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; at a second interrupt, end at once, without the traces of what is cut."""
        if self.should_exit and sig == signal.SIGINT:
            with suppress(OSError):
                os.write(2, b"nmt: error: interrupted\n")
            os._exit(128 + sig)  # the workers end with this process
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        # Blocked until here, because a SIGHUP without a handler would end the server.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        # Flushed, because scripts wait for this line.
        print(self.address, flush=True)

    def _reload(self) -> None:
        self.is_outdated = True
        if self.loading is None or self.loading.done():
            self.loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        # Again if a signal arrived meanwhile: the files may have changed since they were read.
        while self.is_outdated:
            self.is_outdated = False
            try:
                await self.service.models.reload()
            except Exception as error:  # such as a lack of memory; the old models can continue
                warn(f"the models stay as they are: {error or type(error).__name__}")
            else:
                say("loaded the models again")


async def _discard(receive: Receive) -> None:
    """Discard the rest of a body: closing at once would reset the connection, and the answer."""
    with anyio.move_on_after(LINGER):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return


def _line(scope: Scope, status: int) -> str:
    """Return the line of the log; what a client sends is escaped and has a bounded length."""
    host, port = scope.get("client") or ("", "")
    client = quote(host[:LONGEST_CLIENT], safe=":.")  # X-Forwarded-For may hold any text
    method, path = scope["method"][:LONGEST_METHOD], quote(scope["path"][:LONGEST_PATH])
    time = datetime.now().isoformat(timespec="seconds")
    return f"{time} | {client}:{port} | {method} {path} | {status}"

"""Connections to the server that send nothing, slowly, or what is no request; cut off answers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from nmt.errors import NmtError
from nmt.serve.limits import Keys, Limits
from nmt.serve.server import INVALID, STALLED, Connection, _Server, listen, run
from nmt.serve.service import Service


class Loop:
    """An event loop whose time a test tells."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None], list[bool]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        cancelled: list[bool] = []
        self.timers.append((seconds, call, cancelled))
        return type("Timer", (), {"cancel": lambda _: cancelled.append(True)})()

    def create_task(self, coroutine: Any) -> Any:
        coroutine.close()
        return type("Task", (), {"add_done_callback": lambda *_: None})()

    @property
    def running(self) -> list[tuple[float, Callable[[], None]]]:
        return [(seconds, call) for seconds, call, cancelled in self.timers if not cancelled]


class Transport(asyncio.Transport):
    is_closed = False
    written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def _app(scope: Any, receive: Any, send: Any) -> None: ...


def connect(app: Any) -> tuple[Connection, Loop, Transport]:
    loop, transport = Loop(), Transport()
    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    connection = Connection(config, ServerState(), {}, loop)
    connection.connection_made(transport)
    return connection, loop, transport


@pytest.fixture
def connected() -> tuple[Connection, Loop, Transport]:
    return connect(_app)


def test_a_connection_without_a_request_is_closed(
    connected: tuple[Connection, Loop, Transport],
) -> None:
    _, loop, transport = connected
    [(seconds, end)] = loop.running
    assert seconds == Connection.header_seconds
    end()
    assert transport.is_closed


def test_each_byte_of_the_headers_does_not_lengthen_the_time(
    connected: tuple[Connection, Loop, Transport],
) -> None:
    connection, loop, _ = connected
    for byte in b"GET / HTTP/1.1\r\nHost: x\r\n\r":
        connection.data_received(bytes([byte]))
    assert len(loop.timers) == len(loop.running) == 1
    connection.data_received(b"\n")
    assert not loop.running  # the request has time limits of its own


def test_a_connection_that_is_lost_has_no_timer(
    connected: tuple[Connection, Loop, Transport],
) -> None:
    connection, loop, _ = connected
    connection.connection_lost(None)
    assert not loop.running


@pytest.mark.parametrize(
    "headers", ["", "Host: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n", "\x00\r\n"]
)
def test_what_is_no_request_is_answered_in_json(
    headers: str, connected: tuple[Connection, Loop, Transport]
) -> None:
    connection, _, transport = connected
    connection.data_received(f"GET / HTTP/1.1\r\n{headers}\r\n".encode())
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/json" in head
    assert json.loads(body) == {"error": INVALID}
    assert transport.is_closed


@pytest.mark.parametrize("rest", [b"0\r\n\r\n", b"zz\r\n"])
def test_an_answer_without_an_end_is_cut_off_and_no_error_of_the_server(rest: bytes) -> None:
    errors: list[object] = []

    async def begin(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        connection.data_received(rest)
        await send({"type": "http.response.body", "body": b"one\n", "more_body": True})

    connection, _, transport = connect(begin)
    connection.logger = SimpleNamespace(error=errors.append, warning=lambda _: None)  # type: ignore[assignment]
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    asyncio.run(connection.cycle.run_asgi(connection.app))
    assert not errors
    assert transport.written.startswith(b"HTTP/1.1 200")
    assert transport.written.endswith(b"one\n\r\n")  # no chunk ends the answer
    assert transport.is_closed


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    with listen("127.0.0.1", 0) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with client, accepted:
            timeout = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert timeout == 1000 * STALLED


def test_a_port_in_use_costs_one_line_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        busy = f"cannot listen at 127.0.0.1, port {port}: Address already in use; choose another "
        with pytest.raises(NmtError, match=f"^{busy}--host or --port$"):
            listen("127.0.0.1", port)


def test_a_proxy_finds_the_connections_open_that_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[uvicorn.Config] = []
    monkeypatch.setattr(_Server, "run", lambda server, sockets: configs.append(server.config))
    models: Any = SimpleNamespace(
        pairs=[("en", "de")], processes=1, translate=None, close=lambda: None
    )
    run(Service(models, Limits(), Keys(None), 64), "127.0.0.1", 0)
    assert configs[0].timeout_keep_alive > 60  # nginx's keepalive_timeout
    assert configs[0].http is Connection

"""The process of the server: its socket, and its signals."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import Sequence

import uvicorn

from nmt.errors import NmtError
from nmt.messages import say, warn
from nmt.serve.app import application
from nmt.serve.connection import Connection
from nmt.serve.log import Logged
from nmt.serve.service import Service

GRACE = 30
"""Seconds that accepted requests have after SIGTERM."""
KEPT = 75
"""Seconds for which a connection stays open after an answer: longer than a proxy, such as nginx
with its 60, keeps it for the next request, which would else meet a closed one."""
STALLED = 120
"""Seconds after which a client is cut off that takes nothing of its answer, or has vanished."""


def run(
    service: Service,
    host: str,
    port: int,
    origins: Sequence[str] = (),
    log: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        service: translates.
        host: address to listen at.
        port: port, or 0 for any that is free.
        origins: origins whose pages may use the server.
        log: whether to log client, method, path and status of each request.

    Raises:
        NmtError: the address cannot be listened at.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a file for each connection
    app = application(service, origins)
    config = uvicorn.Config(
        Logged(app) if log else app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # its lines have the query
        http=Connection,  # by h11, which limits the bytes of headers; httptools does not
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=KEPT,
        ws="none",
    )
    Connection.header_seconds = service.limits.header_seconds
    server = _Server(config, service)
    try:
        sockets = [listen(host, port)]
        name, number = sockets[0].getsockname()[:2]
        server.address = f"http://{f'[{name}]' if ':' in name else name}:{number}"
        server.run(sockets=sockets)
    finally:
        service.models.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        NmtError: it cannot be listened at.
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


class _Server(uvicorn.Server):
    """Prints the address when ready, and loads the models again on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self.address = ""
        self.loading: asyncio.Task[None] | None = None
        self.is_outdated = False  # since the loading under way began

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        print(self.address, flush=True)

    def _reload(self) -> None:
        self.is_outdated = True
        if self.loading is None or self.loading.done():
            self.loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        while self.is_outdated:
            self.is_outdated = False
            try:
                await self.service.models.reload()
            except Exception as error:  # such as a lack of memory, which is no reason to end
                warn(f"the models stay as they are: {error or type(error).__name__}")
            else:
                say("loaded the models again")

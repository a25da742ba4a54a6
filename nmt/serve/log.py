"""A line on stderr for each request, without query and body."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.messages import say


class Logged:
    """Says time, client, method, path and status of each answer of an application.

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


def _line(scope: Scope, status: int) -> str:
    host, port = scope.get("client") or ("", "")
    time = datetime.now().isoformat(timespec="seconds")
    return f"{time} | {host}:{port} | {scope['method']} {quote(scope['path'])} | {status}"

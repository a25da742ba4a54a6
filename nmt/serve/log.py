"""A line on stderr for each request, without query and body."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.messages import say

STATUSES = {"websocket.accept": 101, "websocket.close": 403}
"""Status of HTTP by the first message to a WebSocket."""


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
        is_answered = False

        async def logged(message: Message) -> None:
            """Send a message; log the request with the first status."""
            nonlocal is_answered
            status = message.get("status", STATUSES.get(message["type"]))
            if status is not None and not is_answered:
                is_answered = True
                say(_line(scope, status))
            await send(message)

        await self.app(scope, receive, logged)


def _line(scope: Scope, status: int) -> str:
    host, port = scope.get("client") or ("", "")
    time = datetime.now().isoformat(timespec="seconds")
    method, path = scope.get("method", "WebSocket"), quote(scope["path"])
    return f"{time} | {host}:{port} | {method} {path} | {status}"

"""Bodies of requests, within limits of size and time; and work that ends with client or server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.serve.access import Limits

T = TypeVar("T")

STREAMS = frozenset({"/v1/stream"})
"""Paths whose bodies are read as they arrive."""


class RefusedError(Exception):
    """A request that is answered with an error; `status` is that of HTTP."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message.encode(errors="replace").decode())  # JSON may hold "\\ud800"
        self.status = status
        self.retry_after = retry_after

    def response(self) -> JSONResponse:
        """Return the answer, as LibreTranslate words it."""
        headers = None if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse({"error": str(self)}, self.status, headers)


class KnownKeys(BaseModel):
    """A JSON object that is refused at its first unknown key; pydantic would describe each."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def check_keys(cls, values: Any) -> Any:
        """Return the values.

        Raises:
            RefusedError: a key is unknown.
        """
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    raise RefusedError(400, f"unknown key {key!r}; /openapi.json lists the keys")
        return values


class WholeBodies:
    """Reads the body of each request before the application sees it, within the limits."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] in STREAMS:
            await self.app(scope, receive, send)
            return
        try:
            body = await self._read(receive)
        except RefusedError as error:
            await error.response()(scope, receive, send)
            return
        if body is None:
            return
        whole: Message = {"type": "http.request", "body": body, "more_body": False}
        messages = iter([whole])

        async def replay() -> Message:
            return next(messages, None) or await receive()

        await self.app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body; None if the client went away."""
        parts, size, limits = [], 0, self.limits
        try:
            with anyio.fail_after(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    if (size := size + len(parts[-1])) > limits.bytes:
                        raise RefusedError(413, f"the body has more than {limits.bytes:,} bytes")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedError(
                408, f"the body did not arrive within {limits.body_seconds:g} s"
            ) from None


class Ended:
    """Answers requests that the end of the server cancels; an answer that has begun is cut off."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] == "lifespan":
                raise
            if not has_begun:
                refusal = RefusedError(503, "the server is shutting down; send the request again")
                await refusal.response()(scope, receive, send)


async def while_connected(request: Request, work: Awaitable[T], seconds: float) -> T:
    """Return the result of the work, which is cancelled if the client goes away.

    Raises:
        RefusedError: the work takes longer than `seconds`.
        ClientDisconnect: the client went away.
    """
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        task, left = tasks
        if task.done():
            return task.result()
        if left.done():
            raise ClientDisconnect
        raise late(seconds)
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # else asyncio logs a late error


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Return the result of the work.

    Raises:
        RefusedError: the work takes longer than `seconds`, and is cancelled.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise late(seconds) from None


def late(seconds: float) -> RefusedError:
    """Return the refusal of a translation that takes longer than `seconds`."""
    return RefusedError(503, f"no translation within {seconds:g} s; send fewer lines", 1)


async def _gone(request: Request) -> None:
    """Wait until the client has gone; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

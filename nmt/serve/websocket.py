"""The WebSocket: messages of lines, answered in their order, as marian-server does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fastapi import WebSocket, WebSocketDisconnect
from starlette.requests import ClientDisconnect
from starlette.types import Message

from nmt.inference import Request as Line
from nmt.serve.bodies import RefusedError, unless_gone
from nmt.serve.service import Service
from nmt.serve.work import Fields, Wish

BEARER = "bearer"
"""Subprotocol that precedes an API key."""
MAX_MESSAGES_AHEAD = 4
"""Messages that are read before their turn."""
MAX_CHARACTERS_AHEAD = 100_000
"""Characters of such messages after which no more are read until all have had their turn."""
MOST_REASON = 123
"""Bytes of the reason for closing a WebSocket, by RFC 6455."""


async def answer_messages(service: Service, socket: WebSocket, origins: Sequence[str]) -> None:
    """Answer the messages of a WebSocket, until the client leaves or a message is refused."""
    pairs = service.models.pairs
    asked = [socket.query_params.get(key) for key in ("source_lang", "target_lang")]
    source, target = (given or usual for given, usual in zip(asked, pairs[0], strict=True))
    if not _is_admitted(socket, origins):
        await socket.close()  # before it was accepted: 403
        return
    protocol, key = _subprotocol_with_key(socket)
    await socket.accept(protocol)
    try:
        service.admit(socket, key)
        wish = Wish(service.pair(source, target))
        messages: asyncio.Queue[Message] = asyncio.Queue(MAX_MESSAGES_AHEAD)
        has_left = asyncio.Event()
        reading = asyncio.ensure_future(_read_messages(socket, messages, has_left))
        try:
            while (message := await messages.get())["type"] == "websocket.receive":
                messages.task_done()
                translated = await _translated_message(service, socket, wish, message, has_left)
                await socket.send_text("\n".join(line[0]["text"] for line in translated) + "\n")
        finally:
            reading.cancel()
    except RefusedError as error:
        reason = str(error).encode()[:MOST_REASON]
        with suppress(WebSocketDisconnect, RuntimeError):  # by the server, if the client has left
            await socket.close(1008, reason.decode(errors="ignore"))
    except (ClientDisconnect, WebSocketDisconnect):
        pass


async def _translated_message(
    service: Service, socket: WebSocket, wish: Wish, message: Message, has_left: asyncio.Event
) -> list[list[Fields]]:
    """Return the translations of a message, unless the client leaves before they are known.

    Raises:
        RefusedError: the message is none of text, or its translation is refused or takes too long.
        ClientDisconnect: the client went away.
    """
    if (text := message.get("text")) is None:
        raise RefusedError(400, "send messages of text, not of bytes")
    text = text.removesuffix("\n")
    service.check_count(text.count("\n") + 1)  # before each becomes a request, which takes time
    work = service.translate(socket, [Line(line) for line in text.split("\n")], wish)
    return await unless_gone(has_left.wait(), work, service.limits.seconds)


async def _read_messages(
    socket: WebSocket, messages: asyncio.Queue[Message], has_left: asyncio.Event
) -> None:
    """Read messages while there is room for them, until the client has left."""
    size = 0
    while (message := await socket.receive())["type"] == "websocket.receive":
        size += len(message.get("text") or message.get("bytes") or "")
        await messages.put(message)
        if size > MAX_CHARACTERS_AHEAD:
            await messages.join()
            size = 0
    has_left.set()
    await messages.put(message)


def _subprotocol_with_key(socket: WebSocket) -> tuple[str | None, str | None]:
    """Return the subprotocol and the API key, which a browser can send in no other header."""
    offered = socket.scope.get("subprotocols", ())
    return (BEARER, offered[1]) if len(offered) == 2 and offered[0] == BEARER else (None, None)


def _is_admitted(socket: WebSocket, origins: Sequence[str]) -> bool:
    """Return whether a page may open the socket; browsers leave that to the server."""
    origin = socket.headers.get("origin")
    if origin is None or "*" in origins or origin in origins:
        return True
    return origin.partition("://")[2] == socket.headers.get("host")

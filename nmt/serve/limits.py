"""Who may use the server, and how much: keys, limits of size and time, and refusals."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import anyio
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.errors import NmtError

T = TypeVar("T")
STREAMS = frozenset({"/v1/stream"})
"""Paths whose bodies are read as they arrive."""
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods whose bodies nothing reads."""
KEYS_IN_BODIES = frozenset({"/translate", "/detect"})
"""Paths of LibreTranslate, whose clients may send the key in the body."""
DISCONNECTED = "is_disconnected"
"""Name of the flag in the state of a request whose connection is lost."""


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of all waiting requests."""

    bytes: int = 4_000_000
    """Bytes of a request's body."""
    all_bytes: int = 64_000_000
    """Bytes of the bodies of all requests under way."""
    lines: int = 2000
    """Lines of a request."""
    characters: int = 20_000
    """Characters of a line."""
    queue: int = 10_000
    """Waiting lines of all clients."""
    seconds: float = 120.0
    """Seconds after which a request without an answer is given up."""
    body_seconds: float = 10.0
    """Seconds within which a request's body must arrive."""
    header_seconds: float = 10.0
    """Seconds within which the headers of a request must arrive, also on a new connection."""


class Keys:
    """The API keys of a file, one a line; stored as hashes to compare in constant time."""

    def __init__(self, path: Path | None) -> None:
        """Read the keys; None lets everybody in.

        Raises:
            NmtError: the file has no key, has a key that begins with "#", or cannot be read.
        """
        self.is_open = path is None
        self._hashes: set[bytes] = set()
        if path is not None:
            self._hashes = {_hash(key) for key in _keys(path)}
            if not self._hashes:
                raise NmtError(f"{path}: holds no key; write one key on each line")

    def admit(self, key: object) -> bool:
        """Return whether the file holds the key of a request; JSON may give any value."""
        return self.is_open or (isinstance(key, str) and _hash(key) in self._hashes)


def admitting_route(admit: Callable[[Request], None]) -> type[APIRoute]:
    """Return a class of routes that check the key, and the type of the body, before they parse it.

    Args:
        admit: raises an error for a client without a valid key.
    """

    class Admitting(APIRoute):
        """A route that checks the key first."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the function that answers a request."""
            answer = super().get_route_handler()

            async def answer_admitted(request: Request) -> Response:
                admit(request)
                # A browser sends JSON to another origin only after asking that origin.
                is_json = media_type(request) == "application/json"
                if not is_json and request.scope["path"] not in STREAMS:
                    raise RefusedError(415, "send JSON with Content-Type: application/json")
                return await answer(request)

            return answer_admitted

    return Admitting


class RefusedError(Exception):
    """A request that is refused; `status` is the status of HTTP."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message.encode(errors="replace").decode())  # JSON may hold "\\ud800"
        self.status = status
        self.retry_after = retry_after

    def response(self) -> JSONResponse:
        """Return the answer in LibreTranslate's form."""
        headers = None if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse({"error": str(self)}, self.status, headers)


class KnownKeys(BaseModel):
    """A JSON object that is refused at its first unknown key; pydantic would describe all keys."""

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


def key_in_header(client: Request) -> str | None:
    """Return the API key in the header Authorization of a client, if there is one."""
    kind, _, key = client.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else None


class HostMiddleware:
    """Answers only requests to known hosts.

    A page elsewhere may let its own name point to this machine; to a browser, the server is then
    part of that page's origin.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """Wrap an application.

        Args:
            app: answers requests to known hosts.
            hosts: names and addresses. With the address of all interfaces (0.0.0.0 or ::), each
                numeric address is known: no page can choose where it points.
        """
        self.app = app
        # Names of hosts have no case, and localhost cannot be another machine.
        self.hosts = {host.lower() for host in hosts} | {"localhost"}
        self.has_all_addresses = not self.hosts.isdisjoint({"0.0.0.0", "::"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "http" and not self._knows(host := _host(Request(scope))):
            refusal = RefusedError(
                421, f"the host {host[:100]!r} is not served; the option --allow-host allows a host"
            )
            await refusal.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _knows(self, host: str) -> bool:
        # Browsers always send a host. Probes of load balancers, in HTTP/1.0, may send none.
        if not host or host in self.hosts:
            return True
        try:
            ip_address(host)
        except ValueError:
            return False
        return self.has_all_addresses


class BodyMiddleware:
    """Reads the body of each request before the application sees it, within the limits.

    A key in the header is checked before the body is read.
    """

    def __init__(self, app: ASGIApp, limits: Limits, admit: Callable[[Request], None]) -> None:
        self.app = app
        self.limits = limits
        self.admit = admit
        self.held = 0  # bytes of all bodies whose requests are under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        has_body = scope["type"] == "http" and scope["method"] not in BODILESS
        if not has_body or scope["path"] in STREAMS:
            await self.app(scope, receive, send)
            return
        parts: list[bytes] = []
        try:
            self._check_key(Request(scope))
            if not await self._read(receive, parts):
                return
            body = b"".join(parts)
            parts[:] = [body]  # else the body takes twice its memory
            whole: Message = {"type": "http.request", "body": body, "more_body": False}
            messages = iter([whole])

            async def replay() -> Message:
                # After the body nothing arrives but the disconnect.
                return next(messages, None) or await receive()

            await self.app(scope, replay, send)
        except RefusedError as error:
            self._release(parts)  # before the answer, which a slow client may hold up
            await error.response()(scope, receive, send)
        finally:
            self._release(parts)

    def _release(self, parts: list[bytes]) -> None:
        self.held -= sum(map(len, parts))
        parts.clear()

    def _check_key(self, request: Request) -> None:
        """Refuse a client by its header, unless the key may stand in the body.

        Raises:
            RefusedError: the key is missing or unknown.
        """
        # A proxy may add another Authorization header, such as Basic, to a request with a key in
        # its body.
        if key_in_header(request) or request.scope["path"] not in KEYS_IN_BODIES:
            self.admit(request)

    async def _read(self, receive: Receive, parts: list[bytes]) -> bool:
        """Add the parts of the body to `parts`; return False if the client went away."""
        size, limits = 0, self.limits
        try:
            with anyio.fail_after(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    parts.append(message.get("body", b""))
                    # Counted before the checks, because the part is in memory already.
                    self.held += len(parts[-1])
                    if (size := size + len(parts[-1])) > limits.bytes:
                        raise RefusedError(413, f"the body has more than {limits.bytes:,} bytes")
                    if self.held > limits.all_bytes:
                        raise RefusedError(503, "too many bodies at this time; try again", 1)
                    if not message.get("more_body"):
                        return True
        except TimeoutError:
            raise RefusedError(
                408, f"the body did not arrive within {limits.body_seconds:g} s"
            ) from None


class ShutdownMiddleware:
    """Answers requests that a shutdown cancels; an answer that has begun is cut off."""

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
    """Return the result of the work, which is cancelled if the client disconnects.

    Raises:
        RefusedError: the work takes longer than `seconds`.
        ClientDisconnect: the client disconnected.
    """
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        task, left = tasks
        if task.done():
            return task.result()
        if left.done():
            raise ClientDisconnect
        raise timeout_refusal(seconds)
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # else asyncio logs a late error


async def with_timeout(seconds: float, work: Awaitable[T]) -> T:
    """Return the result of the work.

    Raises:
        RefusedError: the work takes longer than `seconds`, and is cancelled.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise timeout_refusal(seconds) from None


def timeout_refusal(seconds: float) -> RefusedError:
    """Return the refusal of a translation that takes longer than `seconds`."""
    return RefusedError(503, f"no translation within {seconds:g} s; send fewer lines", 1)


def media_type(request: Request) -> str:
    """Return the type of a request's body, such as "application/json", without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_disconnected(request: Request) -> bool:
    """Return whether the client of a request disconnected; thousands of its lines may wait."""
    return bool(getattr(request.state, DISCONNECTED, False))


def _keys(path: Path) -> Iterator[str]:
    """Yield the keys of a file, whose comments begin with "# "."""
    try:
        # Editors on Windows begin a file with a byte order mark, which would be part of a key.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise NmtError(f"{path}: is not UTF-8; write one key on each line") from None
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if re.match(r"#\S", key):  # a comment must not become a key
            raise NmtError(
                f'{path}, line {number}: a key cannot begin with "#"; begin a comment with "# "'
            )
        if not key.isascii() and not key.startswith("#"):  # headers carry ASCII alone
            raise NmtError(
                f"{path}, line {number}: a key must be ASCII; make one with `openssl rand -hex 32`"
            )
        if key and not key.startswith("#"):
            yield key


def _hash(key: str) -> bytes:
    # JSON may hold half a character, which UTF-8 refuses.
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _host(request: Request) -> str:
    """Return the host that a request names, without its port."""
    # An IPv6 address stands in brackets, so its colons are not taken for a port's.
    host = re.sub(r":\d*$", "", request.headers.get("host", ""))
    return host.removeprefix("[").removesuffix("]").lower()


async def _gone(request: Request) -> None:
    """Wait until the client has gone; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

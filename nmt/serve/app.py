"""The application: puts the parts together, serves the page, and answers errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from nmt import __version__
from nmt.io.page import STYLE
from nmt.languages import has_spaces
from nmt.serve import libretranslate, lines
from nmt.serve.limits import BodyMiddleware, HostMiddleware, RefusedError, ShutdownMiddleware
from nmt.serve.service import CountingMiddleware, Service

# nginx's status for the same.
GONE = 499
"""Status of requests whose client disconnected; only the counts show it."""

KINDS = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
"""Media types of the page's files, by their endings."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Otherwise browsers could show an older version's page.
    "Cache-Control": "no-cache",
}
"""Headers that forbid the browser to load anything from elsewhere, or to send a referrer."""


class Refusal(BaseModel):
    """Answer to a request that is refused."""

    error: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": Refusal,
        "description": "400: a mistake in the request. 403: no key. 408: the body is late. "
        "413: too large. 415: another Content-Type. "
        "421: another host. 429: too much at this time; Retry-After says when to try again.",
    },
    503: {
        "model": Refusal,
        "description": "No translation within the time limit, too many bodies at this time, or the "
        "server is shutting down.",
    },
}
"""Refusals for /openapi.json, instead of the status 422 that FastAPI would name."""


class Direction(BaseModel):
    """Languages of a model."""

    source: str
    target: str
    unit: Literal["words", "pieces"]
    """Unit of alignments; pieces if a language has no spaces."""


class ServerSettings(BaseModel):
    """Languages and limits."""

    pairs: list[Direction]
    max_characters: int


def application(
    service: Service, origins: Sequence[str] = (), hosts: Collection[str] | None = None
) -> FastAPI:
    """Return the application of a service.

    Args:
        service: the translation service.
        origins: origins whose pages may use the server (CORS).
        hosts: hosts that requests may name, next to localhost; None for every host.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Make batches while the application runs."""
        batching = asyncio.create_task(service.batcher.run())
        yield
        batching.cancel()
        with suppress(asyncio.CancelledError):
            await batching

    # FastAPI's pages of documentation would load scripts from elsewhere.
    app = FastAPI(
        title="nmt", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.include_router(lines.router(service), responses=REFUSALS)
    app.include_router(libretranslate.router(service), responses=REFUSALS)
    app.include_router(_page_router(service), responses=REFUSALS)
    # The last one added is the outermost, so that refusals are counted, too.
    app.add_middleware(BodyMiddleware, limits=service.limits, admit=service.admit)
    app.add_middleware(ShutdownMiddleware)
    if hosts is not None:
        app.add_middleware(HostMiddleware, hosts=hosts)
    app.add_middleware(CountingMiddleware, metrics=service.metrics)
    # Outermost: without the headers of CORS, a page cannot read even a refusal.
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Say that the server answers."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return counts for Prometheus."""
        # The version of Prometheus's text format.
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    _answer_errors(app)
    return app


def _page_router(service: Service) -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter()
    texts = {file.name: file.read_bytes() for file in (files("nmt.serve") / "page").iterdir()}
    texts["base.css"] = STYLE.encode()
    assets = {
        name: Response(text, headers=HEADERS, media_type=KINDS[name.rpartition(".")[2]])
        for name, text in texts.items()
    }

    @routes.get("/", include_in_schema=False)
    async def page() -> Response:
        """Return the page."""
        return assets["page.html"]

    @routes.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        """Return a file of the page."""
        if name not in assets:
            raise HTTPException(404)
        return assets[name]

    @routes.get("/v1/settings", tags=["nmt"])
    async def settings() -> ServerSettings:
        """List the languages and the limits, for the page."""
        return ServerSettings(
            pairs=[
                Direction(
                    source=source,
                    target=target,
                    unit="words" if has_spaces(source) and has_spaces(target) else "pieces",
                )
                for source, target in service.models.pairs
            ],
            max_characters=service.limits.characters,
        )

    return routes


def _answer_errors(app: FastAPI) -> None:
    """Answer every error with a JSON object."""

    @app.exception_handler(RefusedError)
    async def refuse(_: Request, error: RefusedError) -> JSONResponse:
        return error.response()

    @app.exception_handler(ClientDisconnect)
    async def forget(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(HTTPException)
    async def no_such_page(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> JSONResponse:
        return RefusedError(500, "the server failed; its log says why").response()

    @app.exception_handler(RequestValidationError)
    async def refuse_values(_: Request, error: RequestValidationError) -> JSONResponse:
        return RefusedError(400, _mistake(error.errors()[0])).response()


def _mistake(error: Mapping[str, Any]) -> str:
    """Return a message for an error that pydantic has found in a request."""
    place = [part for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']}, at character {place[0]}"
    if not place:
        return "the body is not a JSON object with Content-Type: application/json"
    if place[0] == "lines" and len(place) > 1:
        return f'line {place[1] + 1}: give a text, or an object with the field "text"'
    return f"{'.'.join(map(str, place))}: {error['msg']}"

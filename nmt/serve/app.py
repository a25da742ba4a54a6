"""The application: puts the parts together, and answers every error in one form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from nmt import __version__
from nmt.serve import alternatives, libretranslate, lines, pages
from nmt.serve.bodies import Ended, RefusedError, WholeBodies
from nmt.serve.metrics import Counted
from nmt.serve.service import Service

GONE = 499
"""Status, in the counts alone, of requests whose client went away."""


class Refusal(BaseModel):
    """Answer to a request that is refused."""

    error: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": Refusal,
        "description": "400: a mistake in the request. 403: no key. 408: the body is late. "
        "413: too large. 429: too much at this time; Retry-After says when to try again.",
    },
    503: {
        "model": Refusal,
        "description": "No translation within the time limit, or the server is shutting down.",
    },
}
"""Refusals for /openapi.json, in the place of the status 422 that FastAPI would name."""


def application(service: Service, origins: Sequence[str] = ()) -> FastAPI:
    """Return the application of a service.

    Args:
        service: translates.
        origins: origins whose pages may use the server (CORS).
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Make batches while the application runs."""
        batching = asyncio.create_task(service.batcher.run())
        yield
        batching.cancel()
        with suppress(asyncio.CancelledError):
            await batching

    # The pages of documentation that FastAPI offers would load scripts from elsewhere.
    app = FastAPI(
        title="nmt", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.include_router(lines.router(service), responses=REFUSALS)
    app.include_router(alternatives.router(service), responses=REFUSALS)
    app.include_router(libretranslate.router(service), responses=REFUSALS)
    app.include_router(pages.router(service), responses=REFUSALS)
    app.add_middleware(WholeBodies, limits=service.limits)
    app.add_middleware(Ended)
    app.add_middleware(Counted, metrics=service.metrics)
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
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    _answer_errors(app)
    return app


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
    """Return a mistake that pydantic has found in a request, in the words of other messages."""
    place = [part for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']}, at character {place[0]}"
    if not place:
        return "the body is not a JSON object with Content-Type: application/json"
    if place[0] == "lines" and len(place) > 1:
        return f'line {place[1] + 1}: give a text, or an object with the field "text"'
    return f"{'.'.join(map(str, place))}: {error['msg']}"

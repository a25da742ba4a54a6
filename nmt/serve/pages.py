"""The page of the server: its files, the settings that it asks for, and explanations."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from nmt.inference import Request as Line
from nmt.io.page import STYLE
from nmt.languages import has_spaces
from nmt.serve.bodies import while_connected
from nmt.serve.explaining import Explainer
from nmt.serve.libretranslate import body_of, form_or_json, text_of
from nmt.serve.service import Service

KINDS = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
"""Media types of the page's files, by their endings."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers by which a browser loads nothing from elsewhere, and tells nobody."""

EXPLANATION_HEADERS = HEADERS | {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Headers of a page that carries its script and has no access to the server's page."""


class Direction(BaseModel):
    """Languages of a model."""

    source: str
    target: str
    unit: Literal["words", "pieces"]
    """Unit of alignments; pieces where a language has no spaces."""
    explained: bool
    """Whether `/v1/explain` explains translations."""


class Settings(BaseModel):
    """Languages and limits."""

    pairs: list[Direction]
    max_characters: int


def router(service: Service, explainer: Explainer) -> APIRouter:
    """Return the routes."""
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
    async def settings() -> Settings:
        """List the languages and the limits, for the page."""
        explained = await asyncio.to_thread(explainer.pairs)  # reads the runs
        return Settings(
            pairs=[
                Direction(
                    source=source,
                    target=target,
                    unit="words" if has_spaces(source) and has_spaces(target) else "pieces",
                    explained=(source, target) in explained,
                )
                for source, target in service.models.pairs
            ],
            max_characters=service.limits.characters,
        )

    _offer_explanations(routes, service, explainer)
    return routes


def _offer_explanations(routes: APIRouter, service: Service, explainer: Explainer) -> None:
    """Add the route of explanations."""

    @routes.post(
        "/v1/explain",
        tags=["nmt"],
        response_class=HTMLResponse,
        openapi_extra=body_of({"source_lang": "en", "target_lang": "de", "line": "A dog runs."}),
    )
    async def explain(request: Request) -> HTMLResponse:
        """Return a page about how the model translates a line, as `nmt explain` writes it.

        `translation` explains another translation than that of the search.
        """
        values = await form_or_json(service, request)
        names = ("source_lang", "target_lang", "line")
        source, target, line = (text_of(values.get(name), name) for name in names)
        translation = text_of(values.get("translation") or "", "translation")
        pair = service.pair(source, target, line)
        service.check([Line(line, translation)])
        service.spend(request, 1)
        work = explainer.page(pair, line, translation)
        html = await while_connected(request, work, service.limits.seconds)
        return HTMLResponse(html, headers=EXPLANATION_HEADERS)

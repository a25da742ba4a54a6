"""The page of the server: its files, and the settings that it asks for."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nmt.io.page import STYLE
from nmt.languages import has_spaces
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
    "img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers by which a browser loads nothing from elsewhere, and tells nobody."""


class Direction(BaseModel):
    """Languages of a model."""

    source: str
    target: str
    unit: Literal["words", "pieces"]
    """Unit of alignments; pieces where a language has no spaces."""


class Settings(BaseModel):
    """Languages and limits."""

    pairs: list[Direction]
    max_characters: int


def router(service: Service) -> APIRouter:
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
        return Settings(
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

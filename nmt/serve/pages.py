"""The page of the server: its files, and the settings that it asks for."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from nmt.languages import has_spaces
from nmt.serve.service import Service

KINDS = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
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


class Direction(BaseModel):
    """Languages of a model."""

    source: str
    target: str
    unit: Literal["words", "pieces"]
    """Unit of alignments; pieces where a language has no spaces."""


class Settings(BaseModel):
    """Languages and limits."""

    pairs: list[Direction]
    key_required: bool
    max_lines: int
    max_characters: int


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter()
    assets = {
        file.name: Response(
            file.read_bytes(), headers=HEADERS, media_type=KINDS[file.name.rpartition(".")[2]]
        )
        for file in (files("nmt.serve") / "page").iterdir()
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
            pairs=[_direction(source, target) for source, target in service.models.pairs],
            key_required=not service.keys.is_open,
            max_lines=service.limits.lines,
            max_characters=service.limits.characters,
        )

    return routes


def _direction(source: str, target: str) -> Direction:
    spaced = has_spaces(source) and has_spaces(target)
    return Direction(source=source, target=target, unit="words" if spaced else "pieces")

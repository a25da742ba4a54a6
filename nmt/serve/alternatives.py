"""Alternatives for a word of a translation, for the page and for editors."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from nmt.inference import Request as Line
from nmt.serve.access import admitting
from nmt.serve.bodies import KnownKeys, while_connected
from nmt.serve.service import Service
from nmt.serve.work import Wish


class Beginning(KnownKeys):
    """A line, and the beginning of its translation."""

    source_lang: str = "auto"
    target_lang: str
    line: str
    prefix: str = Field("", description="The translation before the word.")
    count: int = Field(8, ge=1, le=20, description="Next tokens to try.")


class Alternative(BaseModel):
    """A translation with another next word."""

    next: str
    text: str
    score: float


class Alternatives(BaseModel):
    """Translations of a line that differ in the next word, best first."""

    alternatives: list[Alternative]


def router(service: Service) -> APIRouter:
    """Return the route."""
    routes = APIRouter(tags=["nmt"], route_class=admitting(service.admit))

    @routes.post("/v1/alternatives")
    async def alternatives(beginning: Beginning, request: Request) -> Alternatives:
        """Propose words that may follow a beginning, each with its whole translation."""
        pair = service.pair(beginning.source_lang, beginning.target_lang, beginning.line)
        wish = Wish(pair, count=beginning.count, alternatives=True)
        work = service.translate([Line(beginning.line, beginning.prefix)], wish)
        [translations] = await while_connected(request, work, service.limits.seconds)
        return Alternatives(alternatives=[Alternative(**fields) for fields in translations])

    return routes

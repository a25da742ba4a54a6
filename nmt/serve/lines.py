"""The interface of this toolkit: lines in, lines out, with the options of ``nmt translate``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, FailFast, Field
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from nmt.errors import NmtError
from nmt.inference import Request as Line
from nmt.inference import SearchConfig
from nmt.serve.limits import (
    KnownKeys,
    RefusedError,
    admitting_route,
    is_disconnected,
    timeout_refusal,
    while_connected,
)
from nmt.serve.service import Service
from nmt.serve.workers import BatchOptions, Fields

AHEAD = 64
"""Lines of a stream that wait or are translated at the same time."""

MOST_ROWS = 100
"""Largest number of hypotheses that the strategy of a request may keep for its line."""

MOST_PHRASES = 100
"""Largest number of phrases of a JSON request, with translations of terms in its line, and largest
number of characters in a phrase. Memory grows with their product."""


class TranslateRequest(KnownKeys):
    """Lines to translate, and the fields to return."""

    source_lang: str = "auto"
    target_lang: str
    lines: Annotated[list[str | dict[str, Any]], FailFast()] = Field(
        description="Lines, or requests as `nmt translate --json-input` reads them."
    )
    n_best: int = Field(1, ge=1, le=100, description="Distinct translations of each line.")
    scores: bool = Field(False, description="Add scores, tokens and their log-probabilities.")
    alignments: Literal["words", "pieces"] | None = Field(
        None, description="Add alignments of these units, and scores."
    )
    markup: Literal["html", "xliff"] | None = Field(None, description="Markup of the lines.")
    split_sentences: bool | None = Field(
        None, description="Translate each sentence by itself, or lines as a whole."
    )


class Answer(BaseModel):
    """The translations of each line, best first."""

    translations: list[list[dict[str, Any]]]


class AlternativesRequest(KnownKeys):
    """A line, and the beginning of its translation."""

    source_lang: str = "auto"
    target_lang: str
    line: str
    prefix: str = Field("", description="The translation before the word.")
    count: int = Field(8, ge=1, le=20, description="Next tokens to try.")


class AlternativeTranslation(BaseModel):
    """A translation that continues with another next word."""

    next: str
    text: str
    score: float


class Alternatives(BaseModel):
    """Translations of a line that differ in the next word, best first."""

    alternatives: list[AlternativeTranslation]


class Stream(StreamingResponse):
    """A response that is sent while the body of the request still arrives."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; the parent would consume the body's messages to see a disconnect.

        After an error the connection is cut, so that the client knows that lines are missing.
        """
        with suppress(RefusedError, ClientDisconnect):
            await self.stream_response(send)


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["nmt"], route_class=admitting_route(service.admit))

    @routes.post("/v1/translate")
    async def translate(wanted: TranslateRequest, request: Request) -> Answer:
        """Translate lines, with the fields of `nmt translate --json`."""
        service.check_count(len(wanted.lines))  # before the slow reading of each line
        options = BatchOptions(
            pair=service.pair(wanted.source_lang, wanted.target_lang, _text_of(wanted.lines)),
            count=wanted.n_best,
            scored=wanted.scores or wanted.alignments is not None,
            aligned=wanted.alignments,
            dialect=wanted.markup,
        )
        lines = _lines(
            wanted, service.models.config(options.pair), service.models.has_context(options.pair)
        )
        work = service.translate(lines, options)
        translations = await while_connected(request, work, service.limits.seconds)
        return Answer(translations=translations)

    @routes.post("/v1/alternatives")
    async def alternatives(wanted: AlternativesRequest, request: Request) -> Alternatives:
        """Propose words that may follow a beginning, each with its whole translation."""
        pair = service.pair(wanted.source_lang, wanted.target_lang, wanted.line)
        options = BatchOptions(pair, count=wanted.count, alternatives=True)
        work = service.translate([Line(wanted.line, wanted.prefix)], options)
        [translations] = await while_connected(request, work, service.limits.seconds)
        return Alternatives(
            alternatives=[AlternativeTranslation(**fields) for fields in translations]
        )

    @routes.post(
        "/v1/stream",
        response_class=Stream,
        openapi_extra={"requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def stream(
        request: Request, target_lang: str, source_lang: str = Query(...)
    ) -> StreamingResponse:
        """Translate a long text line by line; translations are sent while lines still arrive."""
        # Both are required: before the first line there is no text to detect a language from.
        options = BatchOptions(service.pair(source_lang, target_lang))
        translations = _translations(service, request, options)
        first = await anext(translations, b"")  # an earlier error has its own status
        return Stream(_chained(first, translations), media_type="text/plain; charset=utf-8")

    return routes


def _lines(wanted: TranslateRequest, config: SearchConfig, has_context: bool) -> list[Line]:
    """Return a request for each line, for a model with or without context.

    Raises:
        RefusedError: a request is wrong, or markup was combined with another option.
    """
    has_requests = any(isinstance(line, dict) for line in wanted.lines)
    options = (
        wanted.n_best > 1,
        wanted.scores,
        wanted.alignments,
        wanted.split_sentences is not None,
    )
    if wanted.markup and (has_requests or any(options)):
        raise RefusedError(
            400, "markup goes without requests, n_best, scores, alignments and split_sentences"
        )
    lines = [
        Line(line)
        if isinstance(line, str)
        else _request(line, f"line {number}", config, has_context)
        for number, line in enumerate(wanted.lines, start=1)
    ]
    return [
        replace(line, split_sentences=wanted.split_sentences)
        if line.split_sentences is None
        else line
        for line in lines
    ]


def _text_of(lines: Sequence[str | dict[str, Any]]) -> str:
    return "\n".join(line if isinstance(line, str) else str(line.get("text")) for line in lines)


def _request(fields: dict[str, Any], where: str, config: SearchConfig, has_context: bool) -> Line:
    try:
        request = Line.read(fields, where, config, has_context)
    except NmtError as error:
        raise RefusedError(400, str(error)) from None
    rows = (request.strategy or config.strategy).rows_per_sentence
    if (hypotheses := max(rows, request.n_best or 1)) > MOST_ROWS:
        raise RefusedError(400, f"{where}: at most {MOST_ROWS} hypotheses, not {hypotheses}")
    phrases = (*request.required(), *request.avoid)
    # One limit for the number of phrases and for the length of each.
    if max(map(len, (phrases, *phrases))) > MOST_PHRASES:
        raise RefusedError(
            413,
            f"{where}: at most {MOST_PHRASES} phrases, each of {MOST_PHRASES} characters, "
            "translations of its terms included",
        )
    return request


async def _translations(
    service: Service, request: Request, options: BatchOptions
) -> AsyncIterator[bytes]:
    """Yield the translation of each line of the body as soon as it is known, in order."""
    arriving = _arriving(request, service.limits.characters)
    # A future, so that translations go out before the next line has arrived.
    coming: asyncio.Future[str | None] | None = asyncio.ensure_future(anext(arriving, None))
    under_way: deque[asyncio.Future[list[list[Fields]]]] = deque()
    try:
        while coming or under_way:
            # Answers go out in order, so only the oldest line is waited for.
            awaited: list[asyncio.Future[Any]] = list(under_way)[:1]
            if coming and len(under_way) < AHEAD:
                awaited.append(coming)
            seconds = service.limits.seconds
            done, _ = await asyncio.wait(
                awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done and under_way:
                raise timeout_refusal(seconds)
            if not done:
                raise RefusedError(408, f"no line within {seconds:g} s")
            if is_disconnected(request):
                raise ClientDisconnect
            if coming in awaited and coming.done():
                if (line := coming.result()) is None:
                    coming = None
                else:
                    work = _translated(service, Line(line), options)
                    under_way.append(asyncio.ensure_future(work))
                    coming = asyncio.ensure_future(anext(arriving, None))
            finished: list[bytes] = []
            # Finished lines are sent before an error of the next one ends the stream.
            while under_way and under_way[0].done() and not (finished and under_way[0].exception()):
                finished.append(_text(under_way.popleft().result()))
            if (
                finished
            ):  # in one piece, because between two pieces nothing would notice that the client left
                yield b"".join(finished)
    finally:
        # Lines of a client that left must not keep a process at work.
        if coming:
            coming.cancel()
        for task in under_way:
            task.cancel()


async def _translated(service: Service, line: Line, options: BatchOptions) -> list[list[Fields]]:
    """Return the translations of a line of a stream, which waits when the queue is full."""
    while True:
        try:
            return await service.translate([line], options)
        except RefusedError as error:
            # Only a full queue passes: any other refusal would come again.
            if error.status != 429 or error.retry_after is None:
                raise
            await asyncio.sleep(error.retry_after)


async def _chained(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for other in others:
        yield other


def _text(translations: list[list[Fields]]) -> bytes:
    return f"{translations[0][0]['text']}\n".encode()


async def _arriving(request: Request, longest: int) -> AsyncIterator[str]:
    """Yield the lines of a body as they arrive; damaged UTF-8 becomes "�"."""
    rest = b""
    async for part in request.stream():
        # As bytes, because a part may end within a character.
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        # UTF-8 takes at most four bytes for a character.
        if len(rest) > 4 * longest:
            raise RefusedError(413, f"a line has more than {longest:,} characters")
    if rest:
        yield rest.decode(errors="replace")

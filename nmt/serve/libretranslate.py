"""LibreTranslate's interface, so that its clients work (docs.libretranslate.com)."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request

from nmt.inference import Request as Line
from nmt.languages import name_of
from nmt.serve.limits import RefusedError, media_type, while_connected
from nmt.serve.service import Service
from nmt.serve.workers import BatchOptions

URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
MOST_FIELDS = 20
"""Most fields of a form."""


def router(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["LibreTranslate"])

    @routes.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """List the source languages, each with its targets."""
        targets: dict[str, list[str]] = {}
        for source, target in service.models.pairs:
            targets.setdefault(source, []).append(target)
        return [
            {"code": source, "name": name_of(source), "targets": codes}
            for source, codes in targets.items()
        ]

    @routes.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Return the settings that clients may ask for."""
        source, target = service.models.pairs[0]
        return {
            "apiKeys": not service.keys.is_open,
            "keyRequired": not service.keys.is_open,
            "charLimit": service.limits.characters,
            # LibreTranslate's default.
            "frontendTimeout": 500,
            "filesTranslation": False,
            "suggestions": False,
            "supportedFilesFormat": [],
            "language": {
                "source": {"code": source, "name": name_of(source)},
                "target": {"code": target, "name": name_of(target)},
            },
        }

    @routes.post("/detect", openapi_extra=body_of({"q": "Guten Tag"}))
    async def detect(request: Request) -> list[dict[str, Any]]:
        """Tell the language of a text by its letters."""
        values = await form_or_json(service, request)
        text = text_of(values.get("q"), "q")
        return [
            {"language": code, "confidence": service.confidence(text, code)}
            for code in service.detect(text)
        ]

    @routes.post(
        "/translate",
        openapi_extra=body_of({"q": "Guten Tag", "source": "de", "target": "en", "format": "text"}),
    )
    async def translate(request: Request) -> dict[str, Any]:
        """Translate texts or fragments of HTML, one or a list; each line of a text by itself."""
        values = await form_or_json(service, request)
        return await _translate(service, request, values)

    return routes


async def _translate(service: Service, request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request for a translation."""
    q = values.get("q")
    texts = [text_of(one, "q") for one in q] if isinstance(q, list) else [text_of(q, "q")]
    source = text_of(values.get("source"), "source")
    whole = "\n".join(texts)
    pair = service.pair(source, text_of(values.get("target"), "target"), whole)
    form = values.get("format", "text")
    if form not in ("text", "html"):
        raise RefusedError(400, "format: text or html")
    others = _number(values.get("alternatives", 0))
    if form == "html" and others:
        raise RefusedError(400, "alternatives go without format html")
    options = BatchOptions(pair, count=1 + others, dialect="html" if form == "html" else None)
    # Elements of a fragment may span its lines.
    counts = (1 if form == "html" else text.count("\n") + 1 for text in texts)
    service.check_count(sum(counts))  # before each becomes a request, which takes time
    # LibreTranslate's clients send whole texts, but models read single lines.
    lines = [[text] if form == "html" else text.split("\n") for text in texts]
    work = service.translate([Line(line) for text in lines for line in text], options)
    translated = iter(await while_connected(request, work, service.limits.seconds))
    by_text = [[next(translated) for _ in text] for text in lines]
    answer: dict[str, Any] = {"translatedText": [_joined(text, 0) for text in by_text]}
    if others:
        answer["alternatives"] = [
            [other for n in range(1, max(map(len, text))) if (other := _joined(text, n)).strip()]
            for text in by_text
        ]
    if source == "auto":
        detected = {"language": pair[0], "confidence": service.confidence(whole, pair[0])}
        answer["detectedLanguage"] = [detected] * len(texts)
    # As LibreTranslate: one text gets one answer, a list gets lists.
    return answer if isinstance(q, list) else {key: one for key, (one,) in answer.items()}


def _joined(lines: list[list[dict[str, Any]]], nth: int) -> str:
    """Return the n-th translation of each line, or its last, as a text."""
    return "\n".join(line[min(nth, len(line) - 1)]["text"] for line in lines)


async def form_or_json(service: Service, request: Request) -> dict[str, Any]:
    """Return the keys and values of a JSON body or a form, from an admitted client.

    Raises:
        RefusedError: the key in the header, or else in the field `api_key`, is missing or unknown;
            or the body is neither a form of a few fields nor a JSON object in UTF-8.
    """
    values = await _parsed(request)
    service.admit(request, values.get("api_key"))
    return values


async def _parsed(request: Request) -> dict[str, Any]:
    body = await request.body()
    kind = media_type(request)
    if kind not in ("application/json", URLENCODED, MULTIPART) and (kind or body):
        raise RefusedError(415, f"Content-Type: application/json, {URLENCODED} or {MULTIPART}")
    try:
        # In threads, because megabytes of a form would hold up all other clients.
        if kind != "application/json":  # a second, if all is escaped
            fields = await asyncio.to_thread(_fields, request.scope.get("query_string", b""))
            if kind == MULTIPART:
                fields += await asyncio.to_thread(_parts, body, request.headers["content-type"])
            else:
                fields += await asyncio.to_thread(_fields, body)
            return _values(fields)
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(
            400, f"the body is neither JSON in UTF-8 nor a form of at most {MOST_FIELDS} fields"
        ) from None
    if not isinstance(values, dict):
        raise RefusedError(400, "the body is not a JSON object")
    return values


def _fields(form: bytes) -> list[tuple[str, str]]:
    return parse_qsl(
        form.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
    )


def _parts(body: bytes, kind: str) -> list[tuple[str, str]]:
    """Return the fields of a form with the type multipart/form-data.

    Raises:
        ValueError: the body is no such form, or has too many fields.
    """
    boundary = re.search(r'boundary="?([^";]+)', kind)
    if boundary is None:
        raise ValueError("no boundary")
    # The line end before a boundary is part of it (RFC 2046); the first boundary may lack one.
    mark = b"\r\n--" + boundary[1].strip().encode("latin-1")
    # Bounded: with too many fields, the last part does not begin with the end's "--".
    _, *parts, end = (b"\r\n" + body).split(mark, MOST_FIELDS + 1)
    if not end.startswith(b"--"):
        raise ValueError("no end, or too many fields")
    fields = []
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'[; ]name="([^"]*)"', head)
        if name is None:
            raise ValueError("a part without a name")
        fields.append((name[1].decode(), value.decode()))
    return fields


def _values(fields: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the first value of each field; of several texts `q`, all."""
    # Reversed, so that the first of equal keys wins.
    values: dict[str, Any] = dict(reversed(fields))
    texts = [value for key, value in fields if key == "q"]
    return values | ({"q": texts} if len(texts) > 1 else {})


def text_of(value: object, key: str) -> str:
    """Return the value of a key, a text.

    Raises:
        RefusedError: the value is something else.
    """
    if not isinstance(value, str):
        raise RefusedError(400, f"{key}: give a text")
    return value


def _number(value: object) -> int:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= 20:
        raise RefusedError(400, "alternatives: give a number from 0 to 20")
    return int(number)


def body_of(example: dict[str, Any]) -> dict[str, Any]:
    """Return OpenAPI's description of a body in JSON or of a form."""
    schema = {
        "type": "object",
        "required": list(example),
        "properties": {key: {"type": "string"} for key in example}
        | {"api_key": {"type": "string"}},
        "example": example,
    }
    kinds = ("application/json", URLENCODED, MULTIPART)
    return {
        "requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    }

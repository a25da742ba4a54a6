"""Parts of the server without a process: bodies, streams, and who may use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpConnection

from nmt.inference import Request, SearchConfig
from nmt.recipe.config import build
from nmt.search import Beam
from nmt.serve import lines
from nmt.serve.limits import (
    BodyMiddleware,
    Limits,
    RefusedError,
    ShutdownMiddleware,
    timeout_refusal,
    while_connected,
)
from nmt.serve.lines import AHEAD, TranslateRequest, _arriving, _lines, _translations
from nmt.serve.workers import BatchOptions

PLAIN = BatchOptions(("en", "de"))
CONFIG = build(SearchConfig, {"strategy": "lexical_beam"}, "search")


def client_of(*parts: bytes, is_whole: bool = True) -> HttpConnection:
    """A client that sends the parts of a body, and waits for ever if the body is not whole."""
    coming = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    coming[-1]["more_body"] = not is_whole

    async def receive() -> Any:
        if not coming:
            await asyncio.sleep(600)
        return coming.pop(0)

    return HttpConnection({"type": "http"}, receive)


async def everything(parts: AsyncIterator[str]) -> list[str]:
    return [part async for part in parts]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"one\n", b"two\n"], ["one", "two"]),
        ([b"o", b"ne\ntw", b"o"], ["one", "two"]),  # the last line needs no line feed
        ([b"\xff\nd\xc3", b"\xb6\n\xc3"], ["�", "dö", "�"]),
        ([b"x" * 20, b"\n"], ["x" * 20]),  # five characters have at most twenty bytes
    ],
)
def test_the_lines_of_a_body_do_not_depend_on_its_parts(
    parts: list[bytes], expected: list[str]
) -> None:
    assert asyncio.run(everything(_arriving(client_of(*parts), 5))) == expected


def test_a_line_that_never_ends_is_refused() -> None:
    with pytest.raises(RefusedError, match="a line has more than 5 characters") as refused:
        asyncio.run(everything(_arriving(client_of(b"x" * 21, is_whole=False), 5)))
    assert refused.value.status == 413


def test_only_some_lines_of_a_stream_are_under_way() -> None:
    started: list[str] = []

    async def translate(requests: list[Request], options: BatchOptions) -> Any:
        started.append(requests[0].text)
        await asyncio.sleep(600)

    async def read() -> None:
        service: Any = SimpleNamespace(translate=translate, limits=Limits())
        client = client_of(b"one\n" * (AHEAD + 9))
        first = asyncio.ensure_future(anext(_translations(service, client, PLAIN)))
        for _ in range(20 * AHEAD):
            await asyncio.sleep(0)
        first.cancel()

    asyncio.run(read())
    assert len(started) == AHEAD


def test_a_line_of_a_stream_is_tried_again_after_the_time_that_a_refusal_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals, waited = [RefusedError(429, "full", 7), RefusedError(429, "full", 3)], []

    async def translate(*_: Any) -> Any:
        if refusals:
            raise refusals.pop(0)
        return [[{"text": "eins"}]]

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(lines, "asyncio", SimpleNamespace(sleep=sleep))
    service: Any = SimpleNamespace(translate=translate)
    line = Request("one")
    found = asyncio.run(lines._translated(service, line, PLAIN))
    assert (found, waited) == ([[{"text": "eins"}]], [7, 3])


def test_other_refusals_end_a_stream() -> None:
    async def translate(*_: Any) -> Any:
        raise timeout_refusal(2.0)

    service: Any = SimpleNamespace(translate=translate)
    with pytest.raises(RefusedError, match="no translation within 2 s"):
        asyncio.run(lines._translated(service, Request("one"), PLAIN))


@pytest.mark.parametrize(
    "other",
    [
        {"n_best": 2},
        {"scores": True},
        {"alignments": "words"},
        {"split_sentences": False},
        {"lines": ["a", {"text": "b"}]},
    ],
    ids=str,
)
def test_markup_goes_without_each_of_the_others(other: dict[str, Any]) -> None:
    wanted = {"target_lang": "de", "lines": ["a"], "markup": "html"}
    assert _lines(TranslateRequest.model_validate(wanted), CONFIG, False) == [Request("a")]
    with pytest.raises(RefusedError, match="markup goes without requests, n_best, scores,"):
        _lines(TranslateRequest.model_validate(wanted | other), CONFIG, False)
    plain = TranslateRequest.model_validate(wanted | other | {"markup": None})
    assert len(_lines(plain, CONFIG, False)) == len(plain.lines)


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ({"strategy": {"beam": 100}, "n_best": 100}, {"strategy": {"beam": 101}}),
        (
            {"phrases": ["a"] * 50, "avoid": ["b"] * 50},
            {"phrases": ["a"] * 50, "avoid": ["b"] * 51},
        ),
        ({"phrases": ["a" * 100, "b"]}, {"phrases": ["a" * 101, "b"]}),
        ({"terminology": {"a": "b" * 100}}, {"terminology": {"a": "b" * 101, "c": "d"}}),
        (
            {"text": "é", "phrases": ["b"] * 99, "terminology": {"e\u0301": "b", "c": "d" * 101}},
            {"text": "é", "phrases": ["b"] * 100, "terminology": {"e\u0301": "b"}},
        ),
    ],
    ids=lambda fields: ",".join(fields),
)
def test_requests_may_ask_for_a_hundred_of_each_and_no_more(
    most: dict[str, Any], more: dict[str, Any]
) -> None:
    def read(fields: dict[str, Any]) -> list[Request]:
        wanted = {"target_lang": "de", "lines": [{"text": "a"} | fields]}
        return _lines(TranslateRequest.model_validate(wanted), CONFIG, False)

    assert len(read(most)) == 1
    with pytest.raises(RefusedError, match="line 1: at most 100 "):
        read(more)


def test_a_list_that_is_too_long_is_refused_by_its_length() -> None:
    class Many(Beam):
        max_hypotheses = 500

    wanted = TranslateRequest.model_validate(
        {"target_lang": "de", "lines": [{"text": "a", "n_best": 101}]}
    )
    with pytest.raises(RefusedError, match="line 1: at most 100 hypotheses, not 101"):
        _lines(wanted, replace(CONFIG, strategy=Many()), False)


def test_a_refusal_for_now_says_when_to_try_again() -> None:
    assert timeout_refusal(2.5).response().headers["retry-after"] == "1"
    assert RefusedError(429, "full", 30).response().headers["retry-after"] == "30"
    assert "retry-after" not in RefusedError(400, "wrong").response().headers


@pytest.mark.parametrize(
    ("parts", "status"),
    [([b"abc", b"de"], 200), ([b"abc", b"def"], 413), ([b"abc", None], None), ([], 408)],
    ids=["whole", "too large", "client leaves", "late"],
)
def test_the_application_sees_a_body_only_if_it_is_whole_and_within_the_limits(
    parts: list[bytes | None], status: int | None
) -> None:
    messages = [
        {"type": "http.request", "body": part, "more_body": part != b"de"}
        if part
        else {"type": "http.disconnect"}
        for part in parts
    ]
    seen, sent = [], []

    async def receive() -> Any:
        if not messages:
            await asyncio.sleep(600)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message.get("status"))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200})

    whole = BodyMiddleware(
        app, Limits(bytes=5, body_seconds=600.0 if parts else 0.01), lambda _: None
    )
    asyncio.run(
        whole({"type": "http", "method": "POST", "headers": [], "path": "/"}, receive, send)
    )
    assert seen == [b"abcde"] * (status == 200)
    assert sent[:1] == [status] * (status is not None)


def test_work_ends_with_its_client_and_its_error_is_not_logged() -> None:
    ended, logged = [], []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("work")
            raise OSError("the process is gone, too")

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *told: logged.append(told))
        with pytest.raises(ClientDisconnect):
            await while_connected(client, work(), 600)

    async def leave() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    client = HttpConnection({"type": "http"}, leave)
    asyncio.run(ask())
    assert (ended, logged) == (["work"], [])


def test_the_end_of_the_server_is_told_to_its_lifespan() -> None:
    async def app(*_: Any) -> None:
        raise asyncio.CancelledError

    none: Any = None
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ShutdownMiddleware(app)({"type": "lifespan"}, none, none))

"""The server: a real process, and its parts."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread, current_thread, main_thread
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from pydantic import ValidationError
from starlette.requests import Request as HttpConnection

from nmt.errors import NmtError
from nmt.inference import Request
from nmt.serve import batching, libretranslate
from nmt.serve.app import application
from nmt.serve.batching import Batcher, QueueFullError
from nmt.serve.limits import Keys, Limits, RefusedError, ShutdownMiddleware, with_timeout
from nmt.serve.lines import AlternativesRequest, TranslateRequest, _translations
from nmt.serve.service import Service
from nmt.serve.workers import BatchOptions, BatchTranslator, LineBatch, WorkerKilledError

SEARCH = ("--strategy", "beam", "--beam", 2, "--workers", 2)
PLAIN = BatchOptions(("en", "de"))


@contextmanager
def server(
    run: Path, *options: object, hang_up: bool = False
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server's address, and its process, which may get SIGHUP before it is ready."""
    command = [sys.executable, "-m", "nmt", "serve", "--model", run, "--port", 0, *SEARCH]
    process = subprocess.Popen(
        [*map(str, command), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stderr
        if hang_up:
            assert "serves" in process.stderr.readline()
            process.send_signal(signal.SIGHUP)
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.communicate()[1]
        yield address, process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(trained: Path) -> Iterator[str]:
    with server(trained, "--max-lines", 50, "--max-characters", 300) as (address, _):
        yield address


def call(url: str, values: Any = None, **headers: str) -> tuple[int, Any]:
    """The status, and the answer in JSON; a dict is sent as JSON, bytes as they are."""
    data = json.dumps(values).encode() if isinstance(values, dict) else values
    headers = {"Content-Type": "application/json"} | headers
    try:
        with urlopen(HttpRequest(url, data, headers), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def expected(trained: Path, nmt: Callable[..., Any], tmp_path_factory: Any) -> dict[str, str]:
    """What the command says of some lines."""
    lines = ["one two", "", "three", "four five six seven", "two two two"]
    text = tmp_path_factory.mktemp("text") / "input"
    text.write_text("\n".join(lines) + "\n")
    done = nmt("translate", "--model", trained, text, *SEARCH)
    return dict(zip(lines, done.out.split("\n"), strict=False))


def test_the_clients_of_libretranslate_are_answered(address: str, expected: dict[str, str]) -> None:
    source, target = (language["code"] for language in _languages(address))
    form = urlencode({"q": "one two\nthree", "source": source, "target": target}).encode()
    status, answer = call(
        f"{address}/translate", form, **{"Content-Type": "application/x-www-form-urlencoded"}
    )
    both = f"{expected['one two']}\n{expected['three']}"
    assert (status, answer) == (200, {"translatedText": both})
    values = {"q": ["three", ""], "source": "auto", "target": target, "alternatives": 1}
    status, answer = call(f"{address}/translate", values)
    assert status == 200, answer
    assert answer["translatedText"] == [expected["three"], ""]
    assert len(answer["alternatives"][0]) == 1
    assert [detected["language"] for detected in answer["detectedLanguage"]] == [source] * 2
    status, [detected] = call(f"{address}/detect", {"q": "one"})
    assert (status, detected["language"]) == (200, source)
    assert 0 < detected["confidence"] < 10  # many languages are written in Latin
    assert call(f"{address}/health") == (200, {"status": "ok"})
    assert call(f"{address}/frontend/settings")[1]["charLimit"] == 300


def test_markup_of_libretranslate_may_span_lines(address: str, expected: dict[str, str]) -> None:
    source, target = (language["code"] for language in _languages(address))
    text = "<ul>\n<li>one two</li>\n<li>three</li>\n</ul>"
    wanted = {"q": text, "source": source, "target": target, "format": "html"}
    answer = call(f"{address}/translate", wanted)[1]["translatedText"]
    two, three = expected["one two"], expected["three"]
    assert answer.split() == f"<ul> <li>{two}</li> <li>{three}</li> </ul>".split()
    assert call(f"{address}/translate", wanted | {"alternatives": 1})[0] == 400
    wanted = {"target_lang": target, "lines": [text], "markup": "html"}
    [[translation]] = call(f"{address}/v1/translate", wanted)[1]["translations"]
    assert translation["text"] == answer


def test_each_sentence_of_a_text_is_translated_by_itself(
    address: str, trained: Path, nmt: Callable[..., Any], tmp_path: Path
) -> None:
    source, target = (language["code"] for language in _languages(address))
    sentences = ["One two.", "Three two!", "Four?"]
    (tmp_path / "in").write_text("".join(f"{one}\n" for one in (*sentences, " ".join(sentences))))
    done = nmt("translate", tmp_path / "in", "--model", trained, *SEARCH)
    *parts, whole = done.out.splitlines()
    line, joined = " ".join(sentences), " ".join(parts)
    text = f"{line}\n\n{sentences[0]}"
    wanted = {"q": text, "source": source, "target": target}
    answer = call(f"{address}/translate", wanted)[1]["translatedText"]
    assert answer == f"{joined}\n\n{parts[0]}"
    html = wanted | {"q": f"<p>{line}</p>", "format": "html"}
    assert call(f"{address}/translate", html)[1]["translatedText"] == f"<p>{joined}</p>"
    stream = f"{address}/v1/stream?source_lang={source}&target_lang={target}"
    request = HttpRequest(stream, data=text.encode(), method="POST")
    with urlopen(request, timeout=60) as response:
        assert response.read().decode() == f"{joined}\n\n{parts[0]}\n"
    lines = [line, {"text": line, "split_sentences": False}, {"text": line}, {"text": "One two."}]
    asked = {"target_lang": target, "lines": lines, "alignments": "words"}
    status, answer = call(f"{address}/v1/translate", asked)
    assert status == 200, answer
    found = [best for best, *_ in answer["translations"]]
    assert [best["text"] for best in found] == [joined, whole, joined, parts[0]]
    spaced = [[sentence, part] for sentence, part in zip(sentences, parts, strict=True)]
    spaced[1:] = [[f" {sentence}", f" {part}"] for sentence, part in spaced[1:]]
    assert [best.get("sentences") for best in found] == [spaced, None, spaced, None]
    asked = {"target_lang": target, "lines": [line, {"text": line}], "split_sentences": False}
    assert call(f"{address}/v1/translate", asked)[1]["translations"] == [[{"text": whole}]] * 2
    status, answer = call(f"{address}/v1/translate", asked | {"markup": "html"})
    assert (status, answer["error"]) == (
        400,
        "markup goes without requests, n_best, scores, alignments and split_sentences",
    )


def test_a_server_may_leave_lines_whole(
    trained: Path, nmt: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("One two. Three two!\n")
    whole = nmt("translate", tmp_path / "in", "--model", trained, *SEARCH).out.strip()
    with server(trained, "--no-split-sentences") as (address, _):
        _, target = _languages(address)
        wanted = {"target_lang": target["code"], "lines": ["One two. Three two!"]}
        assert call(f"{address}/v1/translate", wanted)[1]["translations"] == [[{"text": whole}]]


def test_a_word_has_alternatives(address: str) -> None:
    _, target = _languages(address)
    wanted = {"target_lang": target["code"], "line": "one two", "prefix": "zwei "}
    status, answer = call(f"{address}/v1/alternatives", wanted)
    assert status == 200, answer
    assert answer["alternatives"]
    for each in answer["alternatives"]:
        assert each["text"].startswith("zwei " + each["next"])
    assert call(f"{address}/v1/alternatives", wanted | {"line": ""})[1] == {"alternatives": []}
    for wrong in ({"count": 99}, {"target_lang": "xx"}, {"line": "\ud800"}):
        assert call(f"{address}/v1/alternatives", wanted | wrong)[0] == 400


def _languages(address: str) -> list[dict[str, str]]:
    [source] = call(f"{address}/languages")[1]
    return [source, {"code": source["targets"][0]}]


def test_lines_have_the_fields_of_translate(address: str, expected: dict[str, str]) -> None:
    _, target = _languages(address)
    lines = list(expected)
    wanted = {"target_lang": target["code"], "lines": lines, "alignments": "words", "n_best": 2}
    status, answer = call(f"{address}/v1/translate", wanted)
    assert status == 200, answer
    assert [line[0]["text"] for line in answer["translations"]] == list(expected.values())[:5]
    best = answer["translations"][0][0]
    assert best["source_words"] == ["one", "two"]
    assert best["log_probability"] == pytest.approx(sum(best["token_log_probabilities"]), abs=1e-3)
    wishes = {"prefix": "zwei", "avoid": ["eins"], "strategy": {"beam": 3}, "n_best": 3}
    requests = [{"text": lines[0], **wishes}, "one"]
    wanted = {"target_lang": target["code"], "lines": requests}
    several, one = call(f"{address}/v1/translate", wanted)[1]["translations"]
    assert len(several) == 3
    assert len(one) == 1
    for translation in several:
        assert translation["text"].startswith("zwei")
        assert "eins" not in translation["text"].split()
    for wrong, message in (
        ({"text": "one", "avoids": []}, "line 1: unknown key 'avoids'; did you mean 'avoid'?"),
        (
            {"text": "one", "context": ["two"]},
            "line 1: context: the model was trained on single sentences; leave it out, or train a "
            "model with preprocess.documents",
        ),
        ({"text": "one", "strategy": {"beam": 101}}, "line 1: at most 100 hypotheses, not 101"),
    ):
        status, answer = call(f"{address}/v1/translate", wanted | {"lines": [wrong]})
        assert (status, answer["error"]) == (400, message)
    with urlopen(f"{address}/metrics", timeout=60) as metrics:
        [lines_of_batches] = re.findall(r"(?m)^nmt_batch_lines_sum (.*)$", metrics.read().decode())
    assert float(lines_of_batches) >= len(lines)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"a": 1}] * 100_000, "100,000 lines; at most 50"),
        ([{"text": "one", "avoid": ["eins"] * 101}], "line 1: at most 100 phrases, each of 100"),
        ([{"text": "one", "avoid": ["e" * 101]}], "line 1: at most 100 phrases, each of 100"),
    ],
)
def test_requests_in_json_have_limits(address: str, lines: list[Any], message: str) -> None:
    _, target = _languages(address)
    wanted = {"target_lang": target["code"], "lines": lines}
    status, answer = call(f"{address}/v1/translate", wanted)
    assert status == 413
    assert answer["error"].startswith(message)


def test_a_stream_is_answered_line_by_line(address: str, expected: dict[str, str]) -> None:
    source, target = (language["code"] for language in _languages(address))
    query = urlencode({"source_lang": source, "target_lang": target})
    lines = list(expected) * 40  # more than travel together
    body = "".join(f"{line}\n" for line in lines).encode()
    with urlopen(HttpRequest(f"{address}/v1/stream?{query}", body), timeout=60) as answer:
        assert answer.read().decode().splitlines() == [expected[line] for line in lines]


def test_a_stream_answers_each_line_before_the_next_arrives(
    address: str, expected: dict[str, str]
) -> None:
    place = urlsplit(address)
    source, target = (language["code"] for language in _languages(address))
    query = urlencode({"source_lang": source, "target_lang": target})
    head = (
        f"POST /v1/stream?{query} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((place.hostname or "", place.port or 0), 60) as client:
        client.sendall(head.encode())
        with client.makefile("rb") as answer:
            for line in ("one two", "three"):
                client.sendall(f"{len(line) + 1:x}\r\n{line}\n\r\n".encode())
                while (received := answer.readline().decode().strip()) != expected[line]:
                    assert received.startswith("HTTP/1.1 200") or "HTTP/" not in received
            bad = "x" * 301
            client.sendall(f"{len(bad) + 1:x}\r\n{bad}\n\r\n".encode())
            assert b"0\r\n\r\n" not in answer.read()  # cut off, not ended
    status, answer = call(f"{address}/v1/stream?{query}", b"x" * 301)
    assert (status, answer["error"]) == (413, "the line has 301 characters; at most 300")


def test_a_stream_waits_for_room() -> None:
    async def ask() -> list[bytes]:
        refusals = iter([RefusedError(429, "full", 0), RefusedError(429, "full", 0), None])

        async def translate(*_: Any) -> Any:
            if error := next(refusals):
                raise error
            return [[{"text": "eins"}]]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"one", "more_body": False}

        service: Any = SimpleNamespace(translate=translate, limits=Limits())
        request = HttpConnection({"type": "http"}, receive)
        return [line async for line in _translations(service, request, PLAIN)]

    assert asyncio.run(ask()) == [b"eins\n"]


def test_a_whole_stream_whose_translation_is_late_is_refused_for_that() -> None:
    async def ask() -> None:
        async def translate(*_: Any) -> Any:
            await asyncio.sleep(600)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"one", "more_body": False}

        service: Any = SimpleNamespace(translate=translate, limits=Limits(seconds=0.2))
        translations = _translations(service, HttpConnection({"type": "http"}, receive), PLAIN)
        with pytest.raises(RefusedError, match=r"no translation within 0\.2 s") as refused:
            await anext(translations)
        assert refused.value.status == 503

    asyncio.run(ask())


def test_a_stream_that_stands_still_is_given_up() -> None:
    async def ask() -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(600)
            raise AssertionError

        service: Any = SimpleNamespace(limits=Limits(seconds=0.0))
        translations = _translations(service, HttpConnection({"type": "http"}, receive), PLAIN)
        with pytest.raises(RefusedError, match="no line within 0 s") as refused:
            await anext(translations)
        assert refused.value.status == 408

    asyncio.run(ask())


def test_a_line_of_a_stream_that_takes_too_long_is_refused() -> None:
    async def translate(batch: LineBatch) -> Any:
        await asyncio.sleep(600)

    async def receive() -> Any:  # a line in the time that a translation has
        await asyncio.sleep(0.1)
        return {"type": "http.request", "body": b"one\n", "more_body": True}

    async def ask() -> None:
        models: Any = SimpleNamespace(pairs=[("en", "de")], processes=1, translate=translate)
        service = Service(models, Limits(seconds=0.2), Keys(None), 1)
        running = asyncio.create_task(service.batcher.run())
        request = HttpConnection({"type": "http"}, receive)
        with pytest.raises(RefusedError, match=r"no translation within 1\.2 s") as refused:
            await anext(_translations(service, request, PLAIN))
        assert refused.value.status == 503
        running.cancel()

    asyncio.run(ask())


def test_a_stream_ends_with_its_client(address: str) -> None:
    source, target = (language["code"] for language in _languages(address))
    place, before = urlsplit(address), _count(address, "nmt_lines_total")
    body = b"one two three four five six\n" * 8000  # in the memory of the server at once
    with socket.create_connection((place.hostname, place.port)) as client:
        path = f"/v1/stream?source_lang={source}&target_lang={target}"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    counts = [_count(address, "nmt_lines_total")]
    while len(set(counts[-4:])) > 1 or len(counts) < 4 or _num_waiting(address):
        time.sleep(1)
        counts.append(_count(address, "nmt_lines_total"))
    assert counts[-1] - before < 4000


def test_the_description_for_programs_names_the_errors_that_are_answered(address: str) -> None:
    paths = call(f"{address}/openapi.json")[1]["paths"]
    for path in ("/v1/translate", "/v1/alternatives", "/v1/stream", "/translate", "/detect"):
        answers = paths[path]["post"]["responses"]
        assert set(answers) == {"200", "4XX", "503"}
        assert answers["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/Refusal")
    assert call(f"{address}/v1/translate", {})[0] == 400


def test_a_body_that_is_no_json_object_is_told_what_is_missing(address: str) -> None:
    body, form = b'{"target_lang": "de"}', {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer = call(f"{address}/v1/translate", body, **form)
    assert (status, "Content-Type: application/json" in answer["error"]) == (415, True), answer


def test_a_form_has_few_fields_and_is_parsed_beside_the_event_loop(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer = call(f"{address}/translate", b"a=b&" * 21, **form)
    assert (status, "a form of at most 20 fields" in answer["error"]) == (400, True), answer
    threads = []
    monkeypatch.setattr(libretranslate, "_fields", lambda _: threads.append(current_thread()) or [])
    models: Any = SimpleNamespace(pairs=[], processes=1)
    service = Service(models, Limits(), Keys(None), 64)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"content-type", form["Content-Type"].encode())]
    client = HttpConnection({"type": "http", "headers": headers}, receive)
    assert asyncio.run(libretranslate.form_or_json(service, client)) == {}
    assert threads
    assert main_thread() not in threads


def test_a_translation_of_several_lines_and_its_alternatives_have_as_many_lines(
    trained: Path, expected: dict[str, str]
) -> None:
    with server(trained, "--batch-lines", 1) as (address, _):  # a batch for each line
        source, target = (language["code"] for language in _languages(address))
        values = {"q": ["one two\n\nthree\ntwo two two", "four\n", ""], "alternatives": 1}
        status, answer = call(f"{address}/translate", values | {"source": source, "target": target})
    assert status == 200, answer
    first, *_ = answer["translatedText"]
    assert first.split("\n") == [expected[line] for line in values["q"][0].split("\n")]
    others = answer["alternatives"]
    for text, translated, texts in zip(values["q"], answer["translatedText"], others, strict=True):
        for each in (translated, *texts):
            assert each.count("\n") == text.count("\n")
    assert [len(texts) for texts in others] == [1, 1, 0]
    assert others[0][0].split("\n")[1] == ""
    assert others[0][0] != first


def test_work_that_takes_too_long_is_given_up() -> None:
    async def ask() -> asyncio.Task[None]:
        work = asyncio.create_task(asyncio.sleep(600))
        with pytest.raises(RefusedError, match="no translation within 0 s") as refused:
            await with_timeout(0, work)
        assert refused.value.status == 503
        return work

    assert asyncio.run(ask()).cancelled()


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/translate", {"q": "a", "source": "xx", "target": "yy"}, 400, "xx-yy is not served"),
        ("/translate", {"q": 7, "source": "a", "target": "b"}, 400, "q: give a text"),
        ("/translate", b'{"q": "\xff"}', 400, "neither JSON in UTF-8 nor a form"),
        ("/translate", b"[" * 100_000, 400, "neither JSON in UTF-8 nor a form"),
        (
            "/translate",
            b'{"q": "\\ud800", "source": "en", "target": "de"}',
            400,
            "half a character",
        ),
        ("/translate", b"x" * 5_000_000, 413, "4,000,000 bytes"),
        (
            "/translate",
            b'{"q": "a", "source": "\\ud800", "target": "de"}',
            400,
            "?-de is not served",
        ),
        ("/v1/translate", b'{"target_lang": "\\ud800", "lines": []}', 400, "auto-? is not served"),
        ("/v1/translate", {"lines": []}, 400, "target_lang: Field required"),
        ("/v1/translate", {"target_lang": "", "lines": [], "beam": 2}, 400, "unknown key 'beam'"),
        ("/v1/translate", b"{bad", 400, "the body is not JSON: "),
        ("/v1/translate", {"target_lang": "de", "lines": ["a", 5]}, 400, "line 2: give a text"),
        ("/v1/translate", b'{"target_lang": "de", "lines": ["\\ud800"]}', 400, "half a character"),
        (
            "/v1/translate",
            {"target_lang": "de", "lines": ["a", "b\nc"]},
            400,
            "line 2: text is several lines; make a request of each",
        ),
        (
            "/v1/alternatives",
            {"target_lang": "de", "line": "a\nb"},
            400,
            "line 1: text is several lines; make a request of each",
        ),
        (
            "/v1/translate",
            {"target_lang": "de", "lines": [], "markup": "html", "alignments": "words"},
            400,
            "markup goes without",
        ),
        ("/nothing", None, 404, "Not Found"),
    ],
)
def test_a_mistake_is_answered_with_one_line(
    address: str, path: str, body: Any, status: int, message: str
) -> None:
    code, answer = call(f"{address}{path}", body)
    assert code == status
    assert list(answer) == ["error"]
    assert message in answer["error"]


def test_mistakes_without_number_are_refused_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError) as refused:
        TranslateRequest.model_validate({"target_lang": "de", "lines": [1] * 1000})
    assert {error["loc"][1] for error in refused.value.errors()} == {0}
    for kind in (TranslateRequest, AlternativesRequest):
        with pytest.raises(RefusedError, match="unknown key '0'"):
            kind.model_validate({str(key): 1 for key in range(1000)})
    monkeypatch.setattr(libretranslate, "Line", None)  # no line becomes a request
    models: Any = SimpleNamespace(pairs=[("en", "de")], processes=1)
    service = Service(models, Limits(), Keys(None), 64)
    values = {"q": [""] * 1000 + ["\n" * 1000], "source": "en", "target": "de"}
    client = HttpConnection({"type": "http"})
    with pytest.raises(RefusedError, match="2,001 lines; at most 2,000"):
        asyncio.run(libretranslate._translate(service, client, values))


def test_requests_have_limits(address: str) -> None:
    _, target = _languages(address)
    for lines, message in ((["a"] * 51, "51 lines; at most 50"), (["a" * 301], "301 characters")):
        status, answer = call(
            f"{address}/v1/translate", {"target_lang": target["code"], "lines": lines}
        )
        assert status == 413
        assert message in answer["error"]


def test_a_body_that_does_not_arrive_and_a_client_that_leaves_harm_nobody(address: str) -> None:
    place = urlsplit(address)
    assert place.hostname
    assert place.port
    for _ in range(20):
        client = socket.create_connection((place.hostname, place.port))
        client.sendall(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"
        )
        client.close()
    idle = [socket.create_connection((place.hostname, place.port)) for _ in range(200)]
    assert call(f"{address}/health")[0] == 200
    for client in idle:
        client.close()


def test_a_refusal_before_the_end_of_a_body_closes_the_connection(
    trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("secret\n")
    with server(trained, "--api-keys", tmp_path / "keys") as (address, _):
        place = urlsplit(address)
        with socket.create_connection((place.hostname or "", place.port or 0), 30) as client:
            head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer no\r\n"
            client.sendall(f"{head}Content-Length: 100\r\n\r\nabc".encode())
            with client.makefile("rb") as answer:
                text = answer.read()  # to the end of the connection
        assert text.startswith(b"HTTP/1.1 403 ")
        assert b"\r\nconnection: close\r\n" in text
        assert text.endswith(b'KEY"}')
        body = b"x" * 3_900_000  # a client that sends all of it gets the answer, too
        assert call(f"{address}/translate", body, Authorization="Bearer no")[0] == 403


def test_a_second_interrupt_costs_one_line(trained: Path) -> None:
    with server(trained) as (address, process):
        place = urlsplit(address)
        source, target = (language["code"] for language in _languages(address))
        path = f"/v1/stream?source_lang={source}&target_lang={target}"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\none\n"
        with socket.create_connection((place.hostname or "", place.port or 0), 30) as client:
            client.sendall(head.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")  # and the stream stays open
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("\nnmt: error: interrupted\n")


def test_sigterm_finishes_what_was_accepted_and_sighup_loads_the_models_again(
    trained: Path, expected: dict[str, str]
) -> None:
    lines = [*expected] * 16  # the server waits for 30 s, also on a machine that is busy
    answers: list[Any] = []
    with server(trained, "--batch-lines", 1) as (address, process):
        _, target = _languages(address)
        wanted = {"target_lang": target["code"], "lines": lines}

        def ask_in_background() -> Thread:
            client = Thread(target=lambda: answers.append(call(f"{address}/v1/translate", wanted)))
            client.start()
            while client.is_alive() and not _num_waiting(address):
                pass
            return client

        client = ask_in_background()
        process.send_signal(signal.SIGHUP)
        assert process.stderr
        assert any("loaded the models again" in line for line in process.stderr)
        client.join()
        client = ask_in_background()
        process.send_signal(signal.SIGTERM)
        client.join()
        process.wait(60)
    assert [status for status, _ in answers] == [200, 200]
    for _, answer in answers:
        assert [line[0]["text"] for line in answer["translations"]] == [expected[x] for x in lines]


def test_the_server_logs_no_text(trained: Path) -> None:
    with server(trained, "--log-requests") as (address, process):
        assert call(f"{address}/health")[0] == 200
        assert call(f"{address}/translate?q=secret", {"q": "secret"})[0] == 400
        assert call(f"{address}/a%0Ab")[0] == 404
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert out == ""
    assert "secret" not in err
    for answered in (
        "GET /health | 200",
        "GET /a%0Ab | 404",
        "POST /translate | 400",
    ):
        assert f" | {answered}\n" in err


@pytest.mark.parametrize(
    ("begins", "statuses"),
    [(False, [503, None]), (True, [200])],
)
def test_a_request_that_the_end_of_the_server_cancels_is_answered_or_cut_off(
    begins: bool, statuses: list[int | None]
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(60)

    async def cancel() -> None:
        request = asyncio.ensure_future(ShutdownMiddleware(app)({"type": "http"}, send, send))
        await settle()
        request.cancel()
        await request

    asyncio.run(cancel())
    assert [message.get("status") for message in sent] == statuses


def test_sighup_before_the_server_is_ready_loads_the_models_again(trained: Path) -> None:
    with server(trained, hang_up=True) as (_, process):
        assert process.stderr
        assert any("loaded the models again" in line for line in process.stderr)


def test_lines_that_wait_are_refused_when_the_models_change_to_other_languages() -> None:
    with pytest.raises(NmtError, match="en-de is not served any more"):
        BatchTranslator({})(LineBatch(PLAIN, [Request("one")]))


def _num_waiting(address: str) -> float:
    return _count(address, "nmt_waiting_lines")


def _count(address: str, name: str) -> float:
    with urlopen(f"{address}/metrics", timeout=60) as answer:
        numbers = re.findall(rf"(?m)^{name}(?:{{.*}})? (.*)$", answer.read().decode())
    return sum(map(float, numbers))


def test_a_killed_worker_loses_no_request(trained: Path, expected: dict[str, str]) -> None:
    with server(trained) as (address, process):
        _, target = _languages(address)
        wanted = {"target_lang": target["code"], "lines": ["three"]}
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        status, answer = call(f"{address}/v1/translate", wanted)
        assert (status, answer["translations"][0][0]["text"]) == (200, expected["three"])


def test_keys_admit_those_who_have_one(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\ufeffsecret\n\n# the page\nother\n", encoding="utf-8")
    with server(trained, "--api-keys", tmp_path / "keys") as (address, _):
        _, target = _languages(address)
        wanted = {"target_lang": target["code"], "lines": ["one"]}
        assert call(f"{address}/v1/translate", wanted)[0] == 403
        assert call(f"{address}/v1/translate", wanted, Authorization="Bearer no")[0] == 403
        assert call(f"{address}/v1/translate", wanted, Authorization="Bearer # the page")[0] == 403
        for path in ("/v1/translate", "/v1/alternatives", "/v1/stream"):
            assert call(f"{address}{path}", b"{bad")[0] == 403
        assert call(f"{address}/v1/translate", wanted, Authorization="Bearer other")[0] == 200
        q = {"q": "one", "source": "auto", "target": target["code"]}
        assert call(f"{address}/translate", q)[0] == 403
        assert call(f"{address}/translate", q | {"api_key": "secret"})[0] == 200
        for values in (b"{bad", q | {"api_key": "secret"}):  # the header is checked before them
            assert call(f"{address}/translate", values, Authorization="Bearer no")[0] == 403
        for no_key in ("\ud800", 123, True, ["secret"], {"secret": 1}):
            assert call(f"{address}/translate", q | {"api_key": no_key})[0] == 403
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(NmtError, match="is not UTF-8"):
        Keys(tmp_path / "keys")
    (tmp_path / "keys").write_text("secret\n#other\n")
    with pytest.raises(
        NmtError, match='keys, line 2: a key cannot begin with "#"; begin a comment'
    ):
        Keys(tmp_path / "keys")
    (tmp_path / "keys").write_text("\n#\n")
    with pytest.raises(NmtError, match="holds no key"):
        Keys(tmp_path / "keys")


def test_mistakes_on_the_command_line(trained: Path, nmt: Callable[..., Any]) -> None:
    twice = nmt("serve", "--model", trained, "--model", trained)
    assert twice.status == 1
    assert "ensemble in one --model, with commas" in twice.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = nmt("serve", "--model", trained / "none", "--port", taken.getsockname()[1])
    assert busy.status == 1
    assert "choose another --host or --port" in busy.err


def test_the_garbage_collector_leaves_the_imports_alone(
    nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def loader(*_: object) -> None:
        calls.append("load")
        raise NmtError("nothing is served")

    monkeypatch.setattr("nmt.cli.serve._loader", loader)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    assert nmt("serve", "--port", 0).status == 1
    assert calls == ["freeze", "load"]


class Processes:
    """Processes that end when a test says so, and note their batches."""

    def __init__(self) -> None:
        self.batches: list[LineBatch] = []
        self.futures: list[asyncio.Future[Any]] = []

    async def __call__(self, batch: LineBatch) -> Any:
        self.batches.append(batch)
        self.futures.append(asyncio.get_running_loop().create_future())
        return await self.futures[-1]

    def finish(self, number: int) -> None:
        lines = self.batches[number].requests
        self.futures[number].set_result([[{"text": line.text.upper()}] for line in lines])

    @property
    def texts(self) -> list[list[str]]:
        return [[request.text for request in batch.requests] for batch in self.batches]


def gather(steps: Callable[[Batcher, Processes], Any], slots: int = 1, queue: int = 100) -> Any:
    """Run the steps beside a batcher of at most three lines a batch."""

    async def run() -> Any:
        processes = Processes()
        batcher = Batcher(processes, slots, 3, queue, 0.0)
        running = asyncio.create_task(batcher.run())
        try:
            return await steps(batcher, processes)
        finally:
            running.cancel()

    return asyncio.run(run())


def ask(batcher: Batcher, lines: Sequence[str], options: BatchOptions = PLAIN) -> asyncio.Task[Any]:
    return asyncio.create_task(batcher.translate([Request(line) for line in lines], options))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_server_without_its_packages_names_their_extra(
    nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nmt.serve.limits", None)
    done = nmt("serve", "--model", "run")
    assert (done.status, done.err) == (
        1,
        "nmt: error: serve needs more packages (nmt.serve.limits); pip install "
        "'nmt-toolkit[serve]', or -e '.[serve]' in a clone\n",
    )


def test_a_document_does_not_hold_up_others() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        document = ask(batcher, ["aaaa", "b" * 9, "cccc", "dddd", *["e" * 9] * 5])
        await settle()
        short = ask(batcher, ["x", "yyyy"])
        other = ask(batcher, ["zzzz"], replace(PLAIN, count=2))
        for number in range(5):
            await settle()
            processes.finish(number)
        assert processes.texts == [
            ["aaaa", "b" * 9, "cccc"],
            ["dddd", "e" * 9, "e" * 9],
            ["x", "yyyy", "e" * 9],
            ["zzzz"],
            ["e" * 9, "e" * 9],
        ]
        texts = [line[0]["text"] for line in await document]
        assert texts == ["AAAA", "B" * 9, "CCCC", "DDDD", *["E" * 9] * 5]
        assert [line[0]["text"] for line in await short] == ["X", "YYYY"]
        assert [line[0]["text"] for line in await other] == ["ZZZZ"]

    gather(steps)


def test_a_request_gives_a_batch_few_lines_if_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "LINES_PER_TURN", 1)

    async def steps(batcher: Batcher, processes: Processes) -> None:
        for lines in (["now"], ["a", "b", "c"], ["d", "e"]):
            ask(batcher, lines)
            await settle()
        for number in range(2):
            processes.finish(number)
            await settle()
        assert processes.texts == [["now"], ["a", "d", "b"], ["e", "c"]]

    gather(steps)


def test_short_lines_do_not_travel_with_long_ones() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        ask(batcher, ["now"])
        await settle()
        for length in (500, 9, 1001, 1000, 200, 250):
            ask(batcher, ["l" * length])
        for number in range(3):
            await settle()
            processes.finish(number)
        await settle()
        lengths = [[len(text) for text in texts] for texts in processes.texts[1:]]
        assert lengths == [[500, 1000, 250], [9, 200], [1001]]

    gather(steps)


def test_processes_share_the_lines_that_wait() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        job = ask(batcher, ["aaaa", "b", "cccc", "d"])
        await settle()
        assert processes.texts == [["aaaa", "b"], ["cccc", "d"]]
        later = ask(batcher, ["e"])
        for number in range(3):
            processes.finish(number)
            await settle()
        assert [line[0]["text"] for line in await job] == ["AAAA", "B", "CCCC", "D"]
        assert [line[0]["text"] for line in await later] == ["E"]
        ask(batcher, ["f", "g"])  # nothing else is under way
        await settle()
        assert processes.texts[3:] == [["f"], ["g"]]

    gather(steps, slots=2)


def test_processes_share_more_lines_than_a_batch_holds() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        job = ask(batcher, list("abcdefg"))
        await settle()
        assert processes.texts == [["a", "b", "c"], ["d", "e", "f"]]
        for number in range(3):
            processes.finish(number)
            await settle()
        assert [line[0]["text"] for line in await job] == list("ABCDEFG")

    gather(steps, slots=2)


def test_the_lines_of_a_client_who_leaves_are_not_translated() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        ask(batcher, ["first"])
        await settle()
        leaving = ask(batcher, ["a", "b"])
        await settle()
        leaving.cancel()
        staying = ask(batcher, ["c"])
        await settle()
        assert batcher.num_waiting == 1
        processes.finish(0)
        await settle()
        assert processes.texts == [["first"], ["c"]]
        processes.finish(1)
        assert (await staying)[0][0]["text"] == "C"

    gather(steps)


def test_a_full_queue_refuses_at_once() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        ask(batcher, ["first"])
        await settle()
        ask(batcher, ["a", "b"])
        await settle()
        with pytest.raises(QueueFullError, match="try again in 1 s"):
            batcher.check_room(1)

    gather(steps, queue=2)


def test_a_request_without_lines_is_answered() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        assert await asyncio.wait_for(ask(batcher, []), 5) == []

    gather(steps)


class Pauses:
    """The module asyncio with pauses that end when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        self.end = asyncio.Event()
        monkeypatch.setattr(
            batching, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": self.sleep})
        )

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self.end.wait()


def test_a_batch_that_is_not_full_waits_while_another_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = Pauses(monkeypatch)

    async def steps(batcher: Batcher, processes: Processes) -> None:
        batcher.pause = 0.5
        for text in ("now", "a", "b"):
            ask(batcher, [text])
            await settle()
        assert (processes.texts, pauses.seconds) == ([["now"]], [0.5])
        pauses.end.set()
        await settle()
        assert processes.texts[1:] == [["a", "b"]]
        for number in range(2):
            processes.finish(number)
        await settle()
        for lines in (["alone"], ["c", "d", "e"]):  # nothing is under way; a batch is full
            ask(batcher, lines)
            await settle()
        assert (processes.texts[2:], pauses.seconds) == ([["alone"], ["c", "d"]], [0.5])

    gather(steps, slots=2)


def test_a_client_who_leaves_while_a_batch_waits_leaves_its_process_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = Pauses(monkeypatch)

    async def steps(batcher: Batcher, processes: Processes) -> None:
        ask(batcher, ["now"])
        await settle()
        leaving = ask(batcher, ["a"])
        await settle()
        leaving.cancel()
        await settle()
        pauses.end.set()
        await settle()
        ask(batcher, ["b"])
        await settle()
        assert processes.texts == [["now"], ["b"]]

    gather(steps, slots=2)


def test_a_queue_holds_its_lines_and_an_empty_one_takes_any_number() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        batcher.check_room(1000)
        ask(batcher, ["first"])
        await settle()
        batcher.check_room(1000)  # a process has the only line
        ask(batcher, ["a", "b"])
        await settle()
        batcher.check_room(3)
        with pytest.raises(QueueFullError):
            batcher.check_room(4)

    gather(steps, queue=5)


def test_a_full_queue_names_the_seconds_that_its_lines_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: now))

    async def steps(batcher: Batcher, processes: Processes) -> None:
        nonlocal now
        ask(batcher, list("abcdef"))
        await settle()
        # Three lines took 6 s: 0.5 a second; then 1 s, and 0.9 x 0.5 + 0.1 x 3 are 0.75.
        for number, (seconds, told) in enumerate(((6.0, 6), (1.0, 4))):
            now += seconds
            processes.finish(number)
            await settle()
            ask(batcher, list("xyz"))
            await settle()
            with pytest.raises(QueueFullError, match=f"try again in {told} s"):
                batcher.check_room(1)

    gather(steps, queue=3)


def test_an_error_of_one_job_spares_the_others() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        jobs = [ask(batcher, ["good"]), ask(batcher, ["bad"])]
        await settle()
        processes.futures[0].set_exception(NmtError("no"))
        await settle()
        processes.finish(1)
        await settle()
        processes.futures[2].set_exception(NmtError("no"))
        assert (await jobs[0])[0][0]["text"] == "GOOD"
        with pytest.raises(NmtError, match="no"):
            await jobs[1]

    gather(steps)


def test_a_line_that_kills_its_process_spares_the_others() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        good, bad, other = (ask(batcher, [text]) for text in ("good", "bad", "other"))
        await settle()
        killed = WorkerKilledError("killed")
        for number, error in enumerate((killed, None, killed, killed, None)):
            if error:
                processes.futures[number].set_exception(error)
            else:
                processes.finish(number)
            await settle()
        assert processes.texts == [["good", "bad", "other"], ["good"], ["bad"], ["bad"], ["other"]]
        for job, text in ((good, "GOOD"), (other, "OTHER")):
            assert (await job)[0][0]["text"] == text
        with pytest.raises(WorkerKilledError):
            await bad

    gather(steps)


def test_a_line_that_killed_its_process_is_not_tried_again_for_a_client_who_left() -> None:
    async def steps(batcher: Batcher, processes: Processes) -> None:
        bad, worse, good = (ask(batcher, [text]) for text in ("bad", "worse", "good"))
        await settle()
        processes.futures[0].set_exception(WorkerKilledError("killed"))
        await settle()
        bad.cancel()
        worse.cancel()
        await settle()
        processes.futures[1].set_exception(WorkerKilledError("killed"))
        await settle()
        assert processes.texts == [["bad", "worse", "good"], ["bad"], ["good"]]
        processes.finish(2)
        assert (await good)[0][0]["text"] == "GOOD"

    gather(steps)


def test_a_request_that_kills_its_process_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def translate(batch: LineBatch) -> Any:
        raise WorkerKilledError("a process was killed while it translated")

    async def ask() -> RefusedError:
        models: Any = SimpleNamespace(pairs=[("en", "de")], processes=1, translate=translate)
        service = Service(models, Limits(), Keys(None), 64)
        running = asyncio.create_task(service.batcher.run())
        with pytest.raises(RefusedError) as refused:
            await service.translate([Request("bad")], PLAIN)
        running.cancel()
        return refused.value

    error = asyncio.run(ask())
    assert error.status == 500
    assert str(error) == "a process was killed while it translated; send fewer or shorter lines"
    assert "a process was killed while it translated, twice, a request of 1 line" in (
        capsys.readouterr().err
    )


def test_the_language_of_a_long_text_is_told_by_its_beginning() -> None:
    read = 0

    class Text(str):
        def __getitem__(self, key: Any) -> str:
            nonlocal read
            part = super().__getitem__(key)
            read += len(part)
            return part

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("the whole text was read")

    models: Any = SimpleNamespace(pairs=[("de", "en"), ("ru", "en")], processes=1, translate=None)
    service = Service(models, Limits(), Keys(None), 64)
    assert service.detect(Text("я" * 10_000)) == {"ru": 1.0}
    assert 0 < read < 10_000


def test_an_error_of_the_server_itself_is_json_too() -> None:
    async def ask() -> tuple[int, bytes]:
        models: Any = SimpleNamespace(pairs=[], processes=1, translate=None)
        service = Service(models, Limits(), Keys(None), 64)
        app = application(service)
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/frontend/settings", "headers": []}
        with pytest.raises(IndexError):  # for the log
            await app({**scope, "query_string": b""}, receive, send)
        counts = service.metrics.text().decode()
        assert 'nmt_requests_total{path="/frontend/settings",status="500"} 1.0' in counts
        return sent[0]["status"], sent[1]["body"]

    assert asyncio.run(ask()) == (500, b'{"error":"the server failed; its log says why"}')


@pytest.mark.parametrize(
    ("variable", "flags", "groups"),
    [
        ("a b:c", (), [["a b", "c"]]),
        ("a", (), [["a"]]),
        ("a:b", ("-m", "x,y", "-m", "z"), [["x", "y"], ["z"]]),
    ],
)
def test_models_of_the_variable_are_an_ensemble(
    nmt: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    flags: tuple[str, ...],
    groups: list[list[str]],
) -> None:
    found: list[list[list[Path]]] = []

    def loader(given: list[list[Path]], *_: object) -> None:
        found.append(given)
        raise NmtError("nothing is served")

    monkeypatch.setenv("NMT_MODEL", variable)
    monkeypatch.setattr("nmt.cli.serve._loader", loader)
    assert nmt("serve", "--port", 0, *flags).err == "nmt: error: nothing is served\n"
    assert [[str(path) for path in group] for group in found[0]] == groups


def test_a_name_that_points_to_the_server_is_refused_unless_it_is_allowed(trained: Path) -> None:
    with server(trained, "--allow-host", "nmt.example") as (address, _):
        for host, status in (("evil.example", 421), ("nmt.example", 200), ("localhost", 200)):
            assert call(f"{address}/v1/settings", Host=host)[0] == status

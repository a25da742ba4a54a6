"""What the server refuses before it works: keys, hosts, types of bodies; its log and its forms."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt.errors import NmtError
from nmt.languages import name_of
from nmt.serve.app import application
from nmt.serve.limits import BodyMiddleware, Keys, Limits
from nmt.serve.server import _line
from nmt.serve.service import Service

FORM = "application/x-www-form-urlencoded"


async def translate(batch: Any) -> Any:
    """Write texts in capitals; the second alternative is empty."""
    others = [{"text": ""}, {"text": "other"}][: batch.options.count - 1]
    return [[{"text": request.text.upper()}, *others] for request in batch.requests]


def ask(
    path: str, body: bytes = b"", kind: str | None = None, **options: Any
) -> tuple[int, Any, int]:
    """Return status and answer of a POST, and how many parts of its body the server read."""
    keys, hosts = options.get("keys"), options.get("hosts")
    headers = {"host": options.get("host", "localhost:5000")} | options.get("headers", {})
    if kind is not None:
        headers["content-type"] = kind
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": options.get("method", "POST"),
        "path": path,
        "query_string": query.encode(),
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
        "state": {},
    }
    sent: list[Any] = []
    reads = 0

    async def receive() -> Any:
        nonlocal reads
        reads += 1
        if reads > 1:
            await asyncio.sleep(600)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        models: Any = SimpleNamespace(
            pairs=[("en", "de")],
            processes=1,
            translate=translate,
            config=lambda _: None,
            has_context=lambda _: False,
        )
        service = Service(models, Limits(), Keys(keys), 64)
        batching = asyncio.create_task(service.batcher.run())
        await application(service, hosts=hosts)(scope, receive, send)
        batching.cancel()

    asyncio.run(run())
    whole = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(whole), reads


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/translate", {"authorization": "Bearer no"}),
        ("/v1/translate", {"authorization": "Bearer no"}),
        ("/v1/translate", {}),
        ("/nothing", {}),
    ],
)
def test_no_body_is_read_of_a_client_whose_header_has_no_key(
    tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    (tmp_path / "keys").write_text("secret\n")
    status, answer, reads = ask(path, b"{}", keys=tmp_path / "keys", headers=headers)
    assert (status, reads) == (403, 0)
    assert "API key" in answer["error"]


def test_a_key_in_the_body_counts_behind_a_proxy_with_a_header_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    body = json.dumps({"q": "one", "source": "en", "target": "de", "api_key": "secret"}).encode()
    headers = {"authorization": "Basic cHJveHk6cHJveHk="}
    status, answer, _ = ask(
        "/translate", body, "application/json", keys=tmp_path / "keys", headers=headers
    )
    assert (status, answer["translatedText"]) == (200, "ONE")


def test_the_bodies_of_all_clients_have_a_limit_together() -> None:
    statuses: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(scope["seconds"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"four", "more_body": False}

    async def send(message: Any) -> None:
        if message.get("status") == 503:
            assert whole.held == 4  # the refused body waits for no client
        if "status" in message:
            statuses.append((message["status"], dict(message["headers"]).get(b"retry-after")))

    whole = BodyMiddleware(app, Limits(all_bytes=7), lambda _: None)

    async def run() -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        first = asyncio.create_task(whole({**scope, "seconds": 0.05}, receive, send))
        await asyncio.sleep(0.01)
        await whole({**scope, "seconds": 0}, receive, send)
        await first
        await whole({**scope, "seconds": 0}, receive, send)
        assert whole.held == 0

    asyncio.run(run())
    assert statuses == [(503, b"1"), (200, None), (200, None)]


@pytest.mark.parametrize(
    ("host", "bound", "status"),
    [
        ("evil.example:5000", "127.0.0.1", 421),
        ("127.0.0.1.evil.example", "0.0.0.0", 421),
        ("10.0.0.5", "127.0.0.1", 421),
        ("", "127.0.0.1", 200),
        ("127.0.0.1:5000", "127.0.0.1", 200),
        ("LOCALHOST", "127.0.0.1", 200),
        ("[::1]:5000", "::1", 200),
        ("10.0.0.5:80", "0.0.0.0", 200),
        ("nmt.example", "nmt.example", 200),
    ],
)
def test_only_known_hosts_are_served(host: str, bound: str, status: int) -> None:
    got, answer, _ = ask("/v1/settings", host=host, hosts=[bound], method="GET")
    assert got == status, answer
    assert (status == 421) == ("--allow-host" in answer.get("error", ""))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_json_needs_its_type(kind: str | None) -> None:
    body = json.dumps({"target_lang": "de", "lines": ["a"]}).encode()
    status, answer, _ = ask("/v1/translate", body, kind)
    assert (status, "application/json" in answer["error"]) == (415, True)
    assert ask("/v1/translate", body, "application/json; charset=utf-8")[0] == 200


def test_libretranslate_takes_json_and_forms_alone() -> None:
    body = json.dumps({"q": "a", "source": "en", "target": "de"}).encode()
    assert ask("/translate", body, "text/plain")[0] == 415
    assert ask("/translate", body)[0] == 415
    assert ask("/translate", body, "application/json")[:2] == (200, {"translatedText": "A"})


def test_each_text_of_a_form_is_answered() -> None:
    two = ask("/translate", b"q=a&q=b&source=en&target=de", FORM)
    assert two[:2] == (200, {"translatedText": ["A", "B"]})
    query = ask("/translate?q=a&source=en&target=de")
    assert query[:2] == (200, {"translatedText": "A"})


def test_a_form_may_have_parts() -> None:
    fields = {"q": "ä\r\nb", "source": "en", "target": "de"}
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    ]
    kind = "multipart/form-data; boundary=x"
    status, answer, _ = ask("/translate", ("".join(parts) + "--x--\r\n").encode(), kind)
    assert (status, answer["translatedText"].split()) == (200, ["Ä", "B"])
    for bad in ("".join(parts), "--x\r\n\r\na\r\n--x--", "".join(parts * 7) + "--x--"):
        status, answer, _ = ask("/translate", bad.encode(), kind)
        assert (status, "a form of at most 20 fields" in answer["error"]) == (400, True)


def test_no_alternative_is_empty() -> None:
    body = json.dumps({"q": "a", "source": "en", "target": "de", "alternatives": 2}).encode()
    _, answer, _ = ask("/translate", body, "application/json")
    assert answer["alternatives"] == ["other"]


def test_languages_have_names() -> None:
    _, languages, _ = ask("/languages", method="GET")
    assert languages == [{"code": "en", "name": "English", "targets": ["de"]}]
    assert [name_of(code) for code in ("zh-Hant", "xyz")] == ["Chinese (Hant)", "xyz"]


def test_detection_by_letters_is_as_sure_as_letters_allow() -> None:
    def sure(text: str) -> float:
        [detected] = ask("/detect", json.dumps({"q": text}).encode(), "application/json")[1]
        return float(detected["confidence"])

    assert 0 < sure("Guten Tag") < 10
    assert sure("привет") == sure("") == 0


def test_the_log_has_no_text_of_a_client_as_it_is() -> None:
    scope = {
        "client": ("\x1b[31m1.2.3.4 | GET /forged | 200\n" + "x" * 9999, 0),
        "method": "GET",
        "path": "/\x1b[2J" + "y" * 9999,
    }
    line = _line(scope, 404)
    assert line.isprintable()
    assert line.count(" | ") == 3
    assert len(line) < 600
    assert " | ::1:80 | " in _line({"client": ("::1", 80), "method": "GET", "path": "/"}, 200)


def test_a_key_that_no_header_can_carry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# für\nsecret\nschlüssel\n", encoding="utf-8")
    with pytest.raises(NmtError, match=r"keys, line 3: a key must be ASCII; make one with"):
        Keys(tmp_path / "keys")

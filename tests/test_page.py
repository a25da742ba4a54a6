"""The page of the server: its files, their headers, and what it asks the server."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import pytest
from html_checker import Checker

from nmt.serve.app import application
from nmt.serve.limits import Keys, Limits
from nmt.serve.service import Service

PAGE = {file.name: file.read_bytes() for file in (files("nmt.serve") / "page").iterdir()}
PAGE["base.css"] = (files("nmt.io") / "page.css").read_bytes()
HTML = PAGE["page.html"].decode()
SCRIPTS = "\n".join(PAGE[name].decode() for name in PAGE if name.endswith(".js"))


def get(path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer of a server from English to German and Japanese."""
    models: Any = SimpleNamespace(
        pairs=[("en", "de"), ("de", "en"), ("en", "ja")], processes=1, submit=None
    )
    app = application(Service(models, Limits(characters=77), Keys(None), 64))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"]


def test_a_browser_may_load_nothing_from_elsewhere() -> None:
    status, headers, body = get("/")
    assert (status, body.decode()) == (200, HTML)
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {value for key, value in policy.items() if key.endswith("-src")} == {"'none'", "'self'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    checker = Checker(HTML)
    assert not checker.open
    assert checker.scripts == [""]
    assert len({*checker.ids}) == len(checker.ids)
    assert {*checker.labelled} <= {*checker.ids}
    checker.assert_outline()
    for name in checker.referred:
        assert name.removeprefix("page/") in PAGE or name == "openapi.json"
    assert " style=" not in HTML
    assert "://" not in HTML + SCRIPTS + PAGE["page.css"].decode()
    assert "url(" not in PAGE["page.css"].decode()


@pytest.mark.parametrize("name", sorted(PAGE))
def test_every_file_of_the_page_is_served(name: str) -> None:
    status, headers, body = get(f"/page/{name}")
    assert (status, body) == (200, PAGE[name])
    kinds = {"js": "text/javascript", "svg": "image/svg+xml"}
    kind = name.rpartition(".")[2]
    assert headers["content-type"].partition(";")[0] == kinds.get(kind, f"text/{kind}")
    assert "content-security-policy" in headers


@pytest.mark.parametrize("path", ["/page/pages.py", "/page/", "/page/..%2fapp.py"])
def test_nothing_else_is_served(path: str) -> None:
    status, _, body = get(path)
    assert (status, json.loads(body)) == (404, {"error": "Not Found"})


def test_the_page_learns_languages_and_limits() -> None:
    status, _, body = get("/v1/settings")
    settings = json.loads(body)
    assert status == 200
    units = [(pair["source"], pair["target"], pair["unit"]) for pair in settings["pairs"]]
    assert units == [("en", "de", "words"), ("de", "en", "words"), ("en", "ja", "pieces")]
    assert settings["max_characters"] == 77


def test_the_scripts_know_the_elements_of_the_page() -> None:
    assert {*re.findall(r'\$\("([\w-]+)"\)', SCRIPTS)} <= {*Checker(HTML).ids}
    assert not re.search(r"\beval\b|document\.write|new Function", SCRIPTS)

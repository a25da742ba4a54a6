"""Explanations of the server: each in a process of its own, within limits."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from test_serve import call, server

from nmt.runs import find_checkpoint
from nmt.serve.bodies import RefusedError
from nmt.serve.explaining import Explainer

PAIR = ("en", "de")


def ask(address: str, **values: str) -> tuple[int, Any, Any]:
    """Status, headers and body of the answer to a form."""
    values = {"source_lang": "en", "target_lang": "de", "api_key": "secret"} | values
    try:
        with urlopen(f"{address}/v1/explain", urlencode(values).encode(), timeout=120) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except HTTPError as error:
        return error.code, error.headers, json.loads(error.read())["error"]


def explained(page: str) -> dict[str, Any]:
    [data] = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', page)
    [model] = json.loads(data)["models"]
    [sentence] = model["sentences"]
    return {"model": model["model"], **sentence}


def test_a_page_explains_the_translation_of_the_server(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    options = ("--api-keys", tmp_path / "keys", "--lines-per-minute", 6)
    with server(trained, *options) as (address, _):
        status, headers, page = ask(address, line="one two")
        assert status == 200, page
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("sandbox allow-scripts; default-src 'none'")
        assert headers["Cache-Control"] == "no-store"
        wanted = {"target_lang": "de", "lines": ["one two"]}
        answer = call(f"{address}/v1/translate", wanted, Authorization="Bearer secret")[1]
        sentence = explained(page)
        assert sentence["model"] == trained.name
        assert str(trained) not in page
        assert sentence["source"]["text"] == "one two"
        assert sentence["target"]["text"] == answer["translations"][0][0]["text"]
        assert sentence["hypotheses"]
        given = explained(ask(address, line="one two", translation="zwei drei")[2])
        assert (given["target"]["text"], given["hypotheses"]) == ("zwei drei", [])
        assert ask(address, line="one", api_key="no")[0] == 403
        for line, message in ((" ", "give a text"), ("six " * 200, "at most 128 are explained")):
            status, _, error = ask(address, line=line)
            assert (status, message in error) == (400, True), error
        assert [ask(address, line="x")[0] for _ in range(2)] == [200, 429]
        settings = call(f"{address}/v1/settings")[1]
        assert settings["pairs"][0]["explained"]


def running(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_a_page_that_nobody_waits_for_is_not_made(trained: Path, tmp_path: Path) -> None:
    def open_models(*_: Any) -> Any:
        (tmp_path / "process").write_text(str(os.getpid()))
        time.sleep(600)

    async def leave() -> int:
        explainer = Explainer([[trained]], open_models)
        pages = [asyncio.ensure_future(explainer.page(PAIR, "one")) for _ in range(4)]
        while not (tmp_path / "process").exists() or not (tmp_path / "process").read_text():
            await asyncio.sleep(0.01)
        with pytest.raises(RefusedError, match="too many explanations") as refused:
            await explainer.page(PAIR, "one")
        assert refused.value.status == 429
        for page in reversed(pages):  # those that wait for their turn first
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
        return int((tmp_path / "process").read_text())

    with pytest.raises(ProcessLookupError):
        os.kill(running(leave()), 0)


def test_a_process_that_is_killed_is_an_error_of_its_page_alone(trained: Path) -> None:
    def open_models(*_: Any) -> Any:
        os.kill(os.getpid(), 9)

    explainer = Explainer([[trained]], open_models)
    with pytest.raises(RefusedError, match="lack of memory") as refused:
        running(explainer.page(PAIR, "one"))
    assert refused.value.status == 503


def test_what_is_no_run_is_not_explained(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_models(*_: Any) -> Any:
        raise AssertionError("opened")

    found: list[Path] = []

    def find(path: Path) -> Any:
        found.append(path)
        return find_checkpoint(path)

    monkeypatch.setattr("nmt.serve.explaining.find_checkpoint", find)
    explainer = Explainer([[tmp_path], [trained]], open_models)
    assert explainer.pairs() == {PAIR: [trained]}
    assert found == [tmp_path, trained]  # each is read once for all its languages
    with pytest.raises(RefusedError, match="only runs are explained"):
        running(explainer.page(("de", "en"), "one"))

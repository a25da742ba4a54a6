"""The site: its links lead somewhere, and its pages are all the documents and all the commands."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "examples/*/*.md")
    for path in sorted(ROOT.glob(pattern))
]


def prose(document: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


@cache
def anchors(document: Path) -> list[str]:
    """The anchors of all headings."""
    return [slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(document), re.M)]


def broken_links(document: Path) -> Iterator[str]:
    """The links to files, pages and headings that are not there."""
    for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose(document)):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        is_missing = not target.exists()
        if is_missing or (anchor and anchors(target.resolve()).count(anchor) != 1):
            yield link


def test_every_link_and_anchor_leads_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {link}"
        for document in DOCUMENTS
        for link in broken_links(document)
    ]
    assert broken == []


def test_broken_links_and_anchors_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three\n[a](page.md#one-two-three) [b](#one) [c](other.md) "
        "[d](https://example.org)\n```\n[e](in_code.md)\n```\n"
    )
    assert list(broken_links(page)) == ["#one", "other.md"]


def pages(navigation: Any) -> Iterator[str]:
    """The pages of the navigation."""
    for entry in navigation:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(value) if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """The settings of mkdocs, which may hold tags of its own."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The script that writes the pages of the commands."""
    return runpy.run_path(str(ROOT / "docs/command_reference.py"))


def test_the_navigation_has_every_document_once(settings: dict[str, Any]) -> None:
    documents = [path.relative_to(ROOT).as_posix().removeprefix("docs/") for path in DOCUMENTS]
    assert sorted(pages(settings["nav"])) == sorted(documents)


def test_the_page_of_a_command_has_its_options_and_its_example(reference: dict[str, Any]) -> None:
    written = reference["command_pages"]()
    for name, command in reference["commands"]().items():
        page = written[name]
        assert f"]({name}.md)" in reference["command_table"]()
        assert "```sh\nnmt " in page
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                is_argument = parameter.param_type_name == "argument"
                assert ((is_argument and parameter.metavar) or parameter.opts[0]) in page
    assert "`-b, --beam, --beam-size" in written["translate"]
    assert "by `--alignments` " not in written["export"]
    assert "[docs/outputs.md](../outputs.md)" in written["translate"]
    assert "## Search\n\n`--terminology FILE`\n:   " in written["translate"]
    assert "--help" not in written["translate"]


def test_text_of_help_is_not_taken_for_markdown(reference: dict[str, Any]) -> None:
    text = 'a_b_c <path> | "nmt score x" of --top-k, *x*'
    assert reference["_prose"](text) == (r"a\_b\_c \<path\> \| `nmt score x` of `--top-k`, \*x\*")


@pytest.mark.full
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings")),
    reason="needs the extra docs",
)
def test_the_site_builds_strictly_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=\"?https?:[^>]*>", home)
    assert fetched == []

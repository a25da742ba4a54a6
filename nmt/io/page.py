"""Pages of HTML that need no network: one file holds text, style, data and script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from nmt.messages import encodable

STYLE = (files("nmt.io") / "page.css").read_text(encoding="utf-8")
"""The style of all pages."""


def html_page(
    title: str, body: str, style: str, data: Mapping[str, object], script: str = ""
) -> str:
    """Return a page.

    Args:
        title: title of the page, as plain text.
        body: elements of the body.
        style: style sheet of this page, after the style of all pages.
        data: values that the script reads from the element with the id ``data``.
        script: script of the page.
    """
    parts = {
        "TITLE": escape(title),
        "STYLE": STYLE + style,
        "BODY": body,
        "DATA": _script_data(data),
        "SCRIPT": script,
    }
    # In one pass, so that no value is searched for the marks of another.
    text, *sections = (files("nmt.io") / "page.html").read_text(encoding="utf-8").split("{{")
    for section in sections:
        name, after = section.split("}}", 1)
        text += parts[name] + after
    return encodable(text)


def _script_data(document: Mapping[str, object]) -> str:
    """Return a document as JSON that is safe inside a ``<script>``."""
    # "<" would end the script, or begin a comment there.
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")

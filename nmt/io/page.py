"""Pages of HTML that need no network: one file holds text, style, data and script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from nmt.messages import encodable

STYLE = (files("nmt.io") / "page.css").read_text(encoding="utf-8")
"""The style that all pages share."""


def html_page(
    title: str, body: str, style: str, data: Mapping[str, object], script: str = ""
) -> str:
    """Return a page.

    Args:
        title: its title, as plain text.
        body: the elements of its body.
        style: its own style sheet, after the one that all pages share.
        data: what its script reads from the element with the id ``data``.
        script: its script.
    """
    parts = {
        "TITLE": escape(title),
        "STYLE": STYLE + style,
        "BODY": body,
        "DATA": _script_data(data),
        "SCRIPT": script,
    }
    text, *sections = (files("nmt.io") / "page.html").read_text(encoding="utf-8").split("{{")
    for section in sections:
        name, after = section.split("}}", 1)
        text += parts[name] + after
    return encodable(text)


def _script_data(document: Mapping[str, object]) -> str:
    """Return a document as JSON that can stand in a ``<script>``."""
    # "<" would end the script, or begin a comment there.
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")

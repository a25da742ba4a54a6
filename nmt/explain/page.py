"""Explanations as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from nmt.io.page import html_page

SCRIPTS = ("elements", "attention", "steps", "heat", "page")
"""Files of the page's script, in the order in which they are joined."""


def page(document: Mapping[str, Any], title: str) -> str:
    """Return the page of a document whose tensors are packed, see :mod:`nmt.explain.document`."""
    body = _asset("page.html").replace("{{TITLE}}", escape(title))
    script = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return html_page(title, body, _asset("page.css"), document, script)


def _asset(name: str) -> str:
    return (files("nmt.explain") / name).read_text(encoding="utf-8")

"""Explanations as one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any


def page(document: Mapping[str, Any], title: str) -> str:
    """Return the page of a document whose tensors are packed, see :mod:`nmt.explain.document`."""
    # "<" would end the script in which the data stand, or begin a comment there.
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "TITLE": escape(title),
        "STYLE": _asset("page.css"),
        "DATA": data,
        "SCRIPT": _asset("page.js"),
    }
    before, *sections = _asset("page.html").split("{{")
    for section in sections:
        name, after = section.split("}}", 1)
        before += parts[name] + after
    return before


def _asset(name: str) -> str:
    return (files("nmt.explain") / name).read_text(encoding="utf-8")

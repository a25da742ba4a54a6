"""Templates of HTML pages that need no network."""

from __future__ import annotations

import json
from collections.abc import Mapping


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Return a template with each ``{{NAME}}`` replaced by the part of this name."""
    text, *sections = template.split("{{")
    for section in sections:
        name, after = section.split("}}", 1)
        text += parts[name] + after
    return text


def script_data(document: Mapping[str, object]) -> str:
    """Return a document as JSON that can stand in a ``<script>``."""
    # "<" would end the script, or begin a comment there.
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")

"""The recipe of a run or an export: YAML, with a first line that holds the checksum of the rest.

It carries its checksum itself because training writes it anew when it goes on with changed keys: a
kill between the writing of two files would leave them at odds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from nmt.errors import NmtError
from nmt.io import files
from nmt.recipe.config import parse_yaml

RECIPE = "recipe.yaml"
SECTIONS = ("model", "train", "search")
MAX_BYTES = 1 << 24


def write_recipe(directory: Path, recipe: dict[str, Any]) -> None:
    """Writes a recipe into a directory, whole or not at all."""
    text = yaml.safe_dump(recipe, sort_keys=False)
    with files.whole_file(directory / RECIPE) as partial:
        partial.write_text(_first_line(text.encode()) + text, encoding="utf-8")


def read_recipe(directory: Path) -> dict[str, Any]:
    """Return the recipe in a directory: plain values.

    Raises:
        NmtError: there is none, it has changed, or a section holds no keys.
    """
    path = directory / RECIPE
    try:
        content = files.read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; restore it") from None
    first, _, rest = content.partition(b"\n")
    if first + b"\n" != _first_line(rest).encode():
        raise NmtError(
            f"{path}: changed since it was written; restore it, and give other values with "
            "--config or --set"
        )
    recipe = parse_yaml(rest.decode("utf-8"), str(path))
    if not isinstance(recipe, dict):
        raise NmtError(f"{path}: expected sections, not {type(recipe).__name__}")
    for name in SECTIONS:
        if not isinstance(recipe.get(name, {}), dict):
            raise NmtError(f"{path}: {name}: expected keys and values")
    return recipe


def _first_line(text: bytes) -> str:
    return f"# SHA-256 of the lines below: {hashlib.sha256(text).hexdigest()}\n"

"""The recipe of a run or an export: YAML, with a first line that holds the checksum of the rest.

The file contains its own checksum because training rewrites the recipe when a run resumes with
changed keys: with a checksum in a second file, a kill between the two writes would leave them
inconsistent.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from nmt.errors import NmtError
from nmt.io import files, reading
from nmt.recipe.config import parse_yaml

RECIPE = "recipe.yaml"
SECTIONS = ("model", "train", "search")
MAX_BYTES = 1 << 24


def write_recipe(directory: Path, recipe: dict[str, Any]) -> None:
    """Write a recipe into a directory, whole or not at all."""
    text = yaml.safe_dump(recipe, sort_keys=False)
    with files.whole_file(directory / RECIPE) as partial:
        partial.write_text(_first_line(text.encode()) + text, encoding="utf-8")


def read_recipe(directory: Path) -> dict[str, Any]:
    """Return the recipe in a directory: plain values.

    Raises:
        NmtError: the recipe is missing, has changed, or has a section without keys.
    """
    path = directory / RECIPE
    try:
        content = reading.read_bounded(path, MAX_BYTES)
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

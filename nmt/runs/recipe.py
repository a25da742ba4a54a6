"""The recipe of a run or an export, and copies of its plugins, with checksums.

The first line of the recipe holds the checksum of the rest, because training rewrites the recipe
when a run resumes with changed keys. With a checksum in a second file, a kill between the two
writes would leave them inconsistent. The directory of plugins is likewise replaced as a whole.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from nmt.errors import NmtError
from nmt.io import documents, files
from nmt.io.documents import DocumentFormat, FileFacts
from nmt.messages import warn
from nmt.recipe.config import parse_yaml
from nmt.recipe.plugins import TRUST, import_copies, is_trusted, not_imported, plugin_sources

RECIPE = "recipe.yaml"

SECTIONS = ("model", "train", "search")

MAX_BYTES = 1 << 24


def write_recipe(directory: Path, recipe: dict[str, Any]) -> None:
    """Write a recipe into a directory, whole or not at all."""
    # In the order of the fields, which docs/recipe.md has, too.
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
        content = documents.read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; restore it") from None
    first, _, rest = content.partition(b"\n")
    # A recipe edited by hand would no longer say how the weights were made.
    if first + b"\n" != _first_line(rest).encode():
        raise NmtError(
            f"{path}: changed since it was written; restore it, and give other values with "
            "--config or --set"
        )
    recipe = copy.deepcopy(_parsed(rest, str(path)))
    if not isinstance(recipe, dict):
        raise NmtError(f"{path}: expected sections, not {type(recipe).__name__}")
    for name in SECTIONS:
        if not isinstance(recipe.get(name, {}), dict):
            raise NmtError(f"{path}: {name}: expected keys and values")
    return recipe


@lru_cache(maxsize=4)
def _parsed(text: bytes, where: str) -> Any:
    # A command opens its run more than once, and a recipe takes longer to parse than to copy.
    return parse_yaml(text.decode("utf-8"), where)


def _first_line(text: bytes) -> str:
    return f"# SHA-256 of the lines below: {hashlib.sha256(text).hexdigest()}\n"


PLUGINS = "plugins"

DESCRIPTION = "plugins.json"

REMEDY = "restore it, or remove the directory and give modules of your own with --plugin"


@dataclass(frozen=True, kw_only=True)
class _PluginsDescription:
    """The content of ``plugins.json``."""

    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        documents.check_inside(self.files)


_FORMAT = DocumentFormat(kind=_PluginsDescription, name="nmt-plugins", version=1, remedy=REMEDY)


def write_plugins(run: Path, sources: Mapping[str, bytes]) -> None:
    """Write copies of plugins into a run, replacing older copies.

    Args:
        run: directory of the run.
        sources: content of the files by relative path.
    """
    directory = run / PLUGINS
    if not sources:
        shutil.rmtree(directory, ignore_errors=True)
        return
    with files.whole_directory(directory) as partial:
        for name, source in sources.items():
            file = partial / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(source)
            files.sync(file)
        facts = {name: FileFacts.from_file(partial / name) for name in sources}
        text = _FORMAT.text(_PluginsDescription(files=facts))
        (partial / DESCRIPTION).write_text(text, encoding="utf-8")


def read_plugins(run: Path) -> dict[str, bytes]:
    """Return the copies of plugins in a run by relative path; empty if the run has no copies.

    Raises:
        NmtError: a copy is missing or has changed.
    """
    directory = run / PLUGINS
    if not directory.exists():
        return {}
    try:
        facts = _FORMAT.read(directory / DESCRIPTION).files
    except FileNotFoundError:
        raise NmtError(f"{directory / DESCRIPTION}: missing; {REMEDY}") from None
    return {name: documents.read_checked(directory / name, facts[name], REMEDY) for name in facts}


def import_plugins_of_run(run: Path, modules: Sequence[str], trusted: bool) -> None:
    """Import the plugins of a run, which may be a stranger's, if the user allows the import.

    A module that the user has named is already imported and needs no consent. Other modules are
    imported from the copies in the run.

    Args:
        run: directory of the run.
        modules: dotted names of the plugins.
        trusted: whether the user trusts the run.

    Raises:
        NmtError: the user has not consented, a copy has changed, or a plugin cannot be imported.
    """
    if not modules:
        return
    missing, copies = not_imported(modules), read_plugins(run)
    # A run can come from anybody, and importing its plugins runs their code.
    if missing and not is_trusted(trusted):
        source = f" from {run / PLUGINS}" if copies else ""
        raise NmtError(
            f"{run}: loading this run would import Python code: {', '.join(missing)}{source}; if "
            f"you trust it, give --trust-plugins (in Python trust_plugins=True; or {TRUST}=1), or "
            f"name modules of your own with --plugin {missing[0]} (in Python import {missing[0]})"
        )
    if missing:
        import_copies(missing, copies, run / PLUGINS, str(run))
    if copies and (changed := differing(plugin_sources(modules), copies)):
        warn(
            f"{run}: {', '.join(changed)}: differs from the copy in {run / PLUGINS}, "
            "with which the run was trained"
        )


def differing(sources: Mapping[str, bytes], copies: Mapping[str, bytes]) -> list[str]:
    """Return the names of the files in which sources and copies differ."""
    return [name for name in sorted({*sources, *copies}) if sources.get(name) != copies.get(name)]

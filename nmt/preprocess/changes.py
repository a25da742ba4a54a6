"""Differences between a recipe and the dataset that was made from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.data.manifest import MANIFEST, Manifest
from nmt.errors import NmtError
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build, dump

NOT_IN_THE_DATA = {"output_dir", "workers", "shard"}
"""Keys that do not change a dataset, or only select a part of it."""

MAX_SHOWN = 80
"""Characters of the longest values that a difference shows."""


def differences(file: Path, section: Mapping[str, Any], dataset: Path) -> list[str]:
    """Return the keys of a recipe that differ from those that its dataset was made with.

    Each comes with both values, if these are short. A recipe older than the dataset has none:
    flags of ``nmt preprocess`` may have gone before it.

    Args:
        file: the recipe.
        section: values of its section ``preprocess``.
        dataset: directory of a dataset; if the recipe writes another one, nothing differs.

    Raises:
        NmtError: the section is not valid.
    """
    values = {key: value for key, value in section.items() if key not in NOT_IN_THE_DATA}
    config = build(PreprocessConfig, values, "preprocess")
    written = Path(str(section.get("output_dir", PreprocessConfig.output_dir)))
    if not _is_newer(file, dataset / MANIFEST) or written.resolve() != dataset.resolve():
        return []
    try:
        made = _comparable({**dump(PreprocessConfig()), **Manifest.read(dataset).recipe})
    except NmtError:  # training says what is wrong with the dataset
        return []
    wanted = _comparable(dump(config))
    return [
        _difference(f"preprocess.{key}", made.get(key), wanted.get(key))
        for key in values
        if wanted.get(key) != made.get(key)
    ]


def _difference(key: str, before: object, after: object) -> str:
    values = f" was {before}, is {after}"
    return key + values if len(values) <= MAX_SHOWN else key


def _is_newer(file: Path, other: Path) -> bool:
    try:
        return file.stat().st_mtime_ns > other.stat().st_mtime_ns
    except OSError:
        return False


def _comparable(value: Any) -> Any:
    """Return values without those that are None, which a dataset may leave out."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items() if item is not None}
    return [_comparable(item) for item in value] if isinstance(value, list) else value

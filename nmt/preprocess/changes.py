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


def changed_keys(file: Path, section: Mapping[str, Any], dataset: Path) -> list[str]:
    """Return the keys of a recipe that were changed after its dataset had been made.

    Keys may also differ because flags of ``nmt preprocess`` went before the recipe, so a recipe
    that is older than the dataset has no changed keys.

    Args:
        file: the recipe.
        section: values of its section ``preprocess``.
        dataset: directory of a dataset; if the recipe writes another one, no key has changed.
    """
    try:
        if not _is_newer(file, dataset / MANIFEST):
            return []
        config = build(PreprocessConfig, section, "preprocess")
        is_of_recipe = Path(config.output_dir).resolve() == dataset.resolve()
        made = Manifest.read(dataset).recipe if is_of_recipe else None
    except NmtError:  # `nmt preprocess` refuses the section, and training a bad dataset
        return []
    if made is None:
        return []
    wanted = _comparable(dump(config))
    made = _comparable({**dump(PreprocessConfig()), **made})
    return [
        key
        for key in section
        if key in wanted and key not in NOT_IN_THE_DATA and wanted[key] != made[key]
    ]


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

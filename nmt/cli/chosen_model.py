"""The model and the dataset of a command that was given none: those that the recipe trains."""

from __future__ import annotations

from pathlib import Path

import typer

from nmt.cli.recipe import SCHEMA, Recipe, read
from nmt.errors import NmtError, UnknownKeyError
from nmt.recipe.registry import unknown


def only_model(models: list[Path] | None) -> Path | None:
    """Return the model, or None without one; raise a BadParameter if there are several."""
    if models and len(models) > 1:
        raise typer.BadParameter("--model is one model here; run the command once for each")
    return models[0] if models else None


def model_or_default(models: list[Path] | None) -> Path:
    """Return the model of a command that reads no recipe otherwise."""
    return only_model(models) or default_run()


def default_run(recipe: Recipe | None = None) -> Path:
    """Return the run that a recipe trains, ``train.save_dir``; by default that of ``nmt.yaml``."""
    return _path("save_dir", recipe)


def default_dataset() -> Path:
    """Return the dataset that ``nmt.yaml`` trains on, ``train.data``."""
    return _path("data")


def _path(key: str, recipe: Recipe | None = None) -> Path:
    train = (recipe or Recipe(read(None))).section("train")
    keys = {path.split(".")[1] for path in SCHEMA.paths() if path.startswith("train.")}
    for name in train:
        if name not in keys:
            raise UnknownKeyError("train", name, unknown("key", name, keys))
    value = train.get(key, SCHEMA.key(f"train.{key}").default)
    if not isinstance(value, str):
        raise NmtError(f"train.{key}: expected text, not {value!r}")
    return Path(value)

"""Default model and dataset of a command: ``train.save_dir`` and ``train.data`` of the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from nmt.cli.recipe import RECIPE, Recipe, read
from nmt.recipe.config import build


@dataclass(frozen=True)
class Places:
    """The keys of the section ``train`` that are directories, with their defaults."""

    data: str = "data-bin"
    save_dir: str = "checkpoints"


def only_model(models: list[Path] | None) -> Path | None:
    """Return the model, or None without one; raise a BadParameter if there are several."""
    if models and len(models) > 1:
        raise typer.BadParameter("--model is one model here; run the command once for each")
    return models[0] if models else None


def model_or_default(models: list[Path] | None) -> Path:
    """Return the given model, or the run of ``nmt.yaml``."""
    return only_model(models) or default_run()


def default_run(recipe: Recipe | None = None) -> Path:
    """Return the run that a recipe trains; None for ``nmt.yaml``."""
    return Path(_places(recipe).save_dir)


def default_dataset() -> Path:
    """Return the dataset of ``nmt.yaml``."""
    return Path(_places().data)


def _places(recipe: Recipe | None = None) -> Places:
    where = "train" if recipe else f"{RECIPE}: train"
    values = (recipe or Recipe(read(None))).section("train")
    return build(Places, {key: values[key] for key in vars(Places()) if key in values}, where)

"""The option ``--model`` of commands that work with one model, where others take an ensemble."""

from __future__ import annotations

from pathlib import Path

import typer


def only_model(models: list[Path] | None) -> Path | None:
    """Return the model, or None without one; raise a BadParameter if there are several."""
    if models and len(models) > 1:
        raise typer.BadParameter("--model is one model here; run the command once for each")
    return models[0] if models else None


def model_or_default(models: list[Path] | None) -> Path:
    """Return the model, by default the run ``checkpoints``."""
    return only_model(models) or Path("checkpoints")

"""Load a model for inference from a run directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.data.manifest import MANIFEST
from nmt.errors import NmtError
from nmt.lazy import torch
from nmt.messages import warn
from nmt.recipe.config import build, dump
from nmt.runs.checkpoint import Base, Checkpoint, Tensors
from nmt.runs.exports import Export
from nmt.runs.recipe import RECIPE, import_plugins_of_run
from nmt.runs.run import Run
from nmt.subwords.subwords import Subwords

if TYPE_CHECKING:
    from nmt.models import Model


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to translate, with its subwords, recipe, run and checkpoint."""

    model: Model
    subwords: Subwords
    recipe: dict[str, Any]
    """Resolved recipe of the run: plain values."""
    run: Run
    checkpoint: Checkpoint


def load_model(
    path: str | Path, device: torch.device | None = None, trust_plugins: bool = False
) -> LoadedModel:
    """Load the model of a run (its best checkpoint, else its last) or of one checkpoint.

    Args:
        path: the run or the checkpoint.
        device: device of the model; the CPU by default.
        trust_plugins: whether to import the Python modules that the recipe names as plugins.

    Raises:
        NmtError: the model is missing, damaged or of another version, or needs plugins that are
            not trusted.
    """
    while True:
        run, checkpoint = find_checkpoint(Path(path))
        import_plugins_of_run(run.path, run.plugins, trust_plugins)
        try:
            return _load(run, checkpoint, device)
        except NmtError:
            if checkpoint.path.exists():
                raise

            # Training has removed the checkpoint meanwhile, and written a newer checkpoint.


def find_checkpoint(path: Path) -> tuple[Run, Checkpoint]:
    """Return the run and the checkpoint at a path.

    Raises:
        NmtError: there is none.
    """
    if Run.exists(path):
        run = Run.open(path)
        if (checkpoint := run.checkpoint("best")) is not None:
            return run, checkpoint
        if (checkpoint := run.checkpoint("last")) is not None:
            warn(
                f"{path}: validation has not found a best checkpoint yet; "
                f"{checkpoint.path.name}, the last, is used"
            )
            return run, checkpoint
        raise NmtError(f"{path}: the run has no checkpoint yet")
    if (path / "checkpoint.json").exists():
        # Resolved, because the link "best" may move to another checkpoint while this one is read.
        checkpoint = Checkpoint.open(path.resolve())
        return Run.open(checkpoint.path.parent), checkpoint
    if Export.exists(path):
        raise NmtError(
            f"{path}: is an export, which only `nmt translate` and `nmt serve` read; give the run "
            "that was exported"
        )
    what = "has no run.json" if path.is_dir() else "is a file"
    what = "is a dataset" if (path / MANIFEST).exists() else what
    raise NmtError(
        f"{path}: not a trained model: it {what if path.exists() else 'does not exist'}; give "
        "a run directory that `nmt train` has made, or one of its checkpoints"
    )


def _load(run: Run, checkpoint: Checkpoint, device: torch.device | None) -> LoadedModel:
    subwords = run.subwords
    model, recipe = complete_model(run, subwords, checkpoint.weights())
    model.to(device or torch.device("cpu")).eval()
    return LoadedModel(model, subwords, recipe, run, checkpoint)


def complete_model(run: Run, subwords: Subwords, weights: Tensors) -> tuple[Model, dict[str, Any]]:
    """Return a run's model, and the recipe of that model.

    The weights of an adaptation are added to the weights of the run's base, and merged into them if
    possible. After a merge, the recipe has no adaptation.

    Args:
        run: the run.
        subwords: subwords of the run.
        weights: the weights of a checkpoint of the run, or a mean of such weights.

    Raises:
        NmtError: the recipe and the weights do not fit together, or the run's base is missing or
            has other weights.
    """
    # Imported here, because finding a checkpoint for CTranslate2 needs no torch.
    from nmt.models import ModelConfig
    from nmt.runs.building import build_with

    sizes = (subwords.source_size, subwords.target_size, subwords.shared)
    section = run.section("model")
    if (base := Base.load(run.path)) is not None:
        # A checkpoint of an adaptation holds only the adaptation's parameters.
        weights = {**base.open(run.path).weights(), **weights}
    try:
        config: ModelConfig = build(ModelConfig, section, "model")  # type: ignore[type-abstract]
        model = build_with(lambda: config.build_adapted(*sizes), weights, run.plugins)
    except NmtError as error:
        raise NmtError(f"{run.path / RECIPE}: {error}") from None
    if config.adaptation is None:
        return model, run.recipe
    merged = replace(config, adaptation=config.adaptation.merge_into(model))
    return model, {**run.recipe, "model": dump(merged)}

"""Checkpoint averaging (section 6.1: the last 5 checkpoints of base, the last 20 of big)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.io import files
from nmt.recipe.config import build
from nmt.runs import Checkpoint, Run, average
from nmt.runs.plugins import import_plugins_of_run, read_plugins
from nmt.training.config import TrainConfig


def pick_last(path: Path, count: int) -> list[Path]:
    """The newest `count` checkpoints of a run, oldest first."""
    return [checkpoint.path for checkpoint in _enough(Run.open(path).checkpoints(), count, path)]


def pick_best(path: Path, count: int, trust_plugins: bool = False) -> list[Path]:
    """The `count` kept checkpoints that validated best, worst first.

    The rule is that of the run's own "best": of equally good ones, the lower loss, then the older.
    It may rank by a metric of a plugin, which is imported where `trust_plugins` allows it.
    """
    run = Run.open(path)
    import_plugins_of_run(run.path, run.plugins, trust_plugins)
    config = build(TrainConfig, run.recipe["train"], "train")

    def sort_key(checkpoint: Checkpoint) -> tuple[float, float]:
        return config.sort_key(
            checkpoint.scores.get(config.best_metric), checkpoint.scores.get("loss")
        )

    validated = [it for it in run.checkpoints() if sort_key(it) > config.sort_key(None, None)]
    validated = sorted(reversed(validated), key=sort_key)
    return [checkpoint.path for checkpoint in _enough(validated, count, path)]


def average_run(paths: Sequence[Path], output: Path | None) -> Run:
    """A new run whose only checkpoint holds the mean weights of the given ones.

    Args:
        paths: checkpoints of one run.
        output: where it is written, in the place of an older average; None for "averaged" in the
            directory of the run.

    Raises:
        NmtError: they are of different runs or shapes, or `output` holds anything but an average.
    """
    checkpoints = [Checkpoint.open(path.resolve() if path.is_symlink() else path) for path in paths]
    runs = [Run.open(checkpoint.path.parent) for checkpoint in checkpoints]
    run = runs[0]
    for other in runs:
        if other.identity != run.identity:
            raise NmtError(
                f"{run.path} and {other.path} are different runs; average checkpoints of one run"
            )
    output = output or run.path / "averaged"
    if not _may_be_replaced(output):
        raise NmtError(f"{output}: holds something else than an average; choose another --output")
    weights = average(checkpoints)
    with files.whole_directory(output.resolve()) as partial:
        averaged = Run.create(
            partial,
            languages=(run.source_lang, run.target_lang),
            identity=secrets.token_hex(8),
            data=run.data,
            recipe={**run.recipe, "averaged": [checkpoint.path.name for checkpoint in checkpoints]},
            subwords=run.subwords,
            plugins=read_plugins(run.path),
        )
        newest = max(checkpoint.update for checkpoint in checkpoints)
        averaged.save(newest, weights, None, {}, {}, best=True)
        if run.has_shortlist:
            averaged.give_shortlist(run.shortlist)
    return Run.open(output)


def _may_be_replaced(output: Path) -> bool:
    if Run.exists(output):
        return "averaged" in Run.open(output).recipe
    return not output.exists() or (output.is_dir() and not any(output.iterdir()))


def _enough(checkpoints: list[Checkpoint], count: int, path: Path) -> list[Checkpoint]:
    if not 1 <= count <= len(checkpoints):
        raise NmtError(f"{path}: {count} checkpoints wanted, but {len(checkpoints)} can be used")
    return checkpoints[-count:]

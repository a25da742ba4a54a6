"""Checkpoint averaging (section 6.1: the last 5 checkpoints of base, the last 20 of big)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.io import files
from nmt.recipe.config import build
from nmt.runs import Base, Checkpoint, Run, average, complete_model, weights_of
from nmt.runs.plugins import import_plugins_of_run, read_plugins
from nmt.training.config import TrainConfig


def pick_last(path: Path, count: int) -> list[Path]:
    """Return the paths of the newest `count` checkpoints of a run, oldest first.

    Raises:
        NmtError: the run has fewer checkpoints.
    """
    return [checkpoint.path for checkpoint in _enough(Run.open(path).checkpoints(), count, path)]


def pick_best(path: Path, count: int, trust_plugins: bool = False) -> list[Path]:
    """Return the paths of the `count` kept checkpoints with the best validations, worst first.

    The ranking is that of the run's best checkpoint: by `best_metric`, then by lower loss, then by
    age, older first. A metric of a plugin is imported if `trust_plugins` allows it.

    Raises:
        NmtError: the run has fewer validated checkpoints, or a plugin is not trusted.
    """
    run = Run.open(path)
    import_plugins_of_run(run.path, run.plugins, trust_plugins)
    config = build(TrainConfig, run.recipe["train"], "train")

    def sort_key(checkpoint: Checkpoint) -> tuple[float, float]:
        return config.sort_key(
            checkpoint.scores.get(config.best_metric), checkpoint.scores.get("loss")
        )

    worst = config.sort_key(None, None)
    validated = [checkpoint for checkpoint in run.checkpoints() if sort_key(checkpoint) > worst]
    validated = sorted(reversed(validated), key=sort_key)
    return [checkpoint.path for checkpoint in _enough(validated, count, path)]


def average_run(paths: Sequence[Path], output: Path | None, trust_plugins: bool = False) -> Run:
    """Write a new run whose only checkpoint holds the mean weights of some checkpoints.

    A run that adapts a base becomes a complete one: the mean of the parts is merged into the base.

    Args:
        paths: checkpoints of one run.
        output: directory of the new run; replaces an older average. None for "averaged" in the
            run's directory.
        trust_plugins: whether to import the plugins of a run that adapts a base.

    Returns:
        The new run.

    Raises:
        NmtError: the checkpoints are of different runs or shapes, or `output` holds anything but
            an average.
    """
    checkpoints = [Checkpoint.open(path.resolve() if path.is_symlink() else path) for path in paths]
    given: set[Path] = set()
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        if (resolved := checkpoint.path.resolve()) in given:
            raise NmtError(f"{path}: is {resolved.name}, which is given already; leave it out")
        given.add(resolved)
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
    weights, recipe = average(checkpoints), run.recipe
    if Base.load(run.path) is not None:
        import_plugins_of_run(run.path, run.plugins, trust_plugins)
        model, recipe = complete_model(run, run.subwords, weights)
        weights = weights_of(model)
    with files.whole_directory(output.resolve()) as partial:
        averaged = Run.create(
            partial,
            languages=(run.source_lang, run.target_lang),
            identity=secrets.token_hex(8),
            data=run.data,
            recipe={**recipe, "averaged": [checkpoint.path.name for checkpoint in checkpoints]},
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
        raise NmtError(
            f"{path}: {count} checkpoints wanted, but {len(checkpoints)} can be used; average "
            "fewer, train longer, or train with a larger --keep-last"
        )
    return checkpoints[-count:]

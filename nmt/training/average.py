"""Checkpoint averaging (section 6.1: the last 5 checkpoints of base, the last 20 of big)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.io import files
from nmt.recipe.config import build, flatten
from nmt.runs import Base, Checkpoint, Run, average, complete_model, weights_of
from nmt.runs.checkpoint import similarity
from nmt.runs.recipe import import_plugins_of_run, read_plugins
from nmt.training.config import TrainConfig

LEAST_SIMILARITY = 0.5
"""Least similarity of the weights of two runs that may be averaged.

On Multi30k, runs that began with the same trained weights have 0.96 after 3,000 updates, and runs
that began with different random weights 0.04.
"""


def pick_last(path: Path, count: int) -> list[Path]:
    """Return the paths of the newest `count` checkpoints of a run, oldest first.

    Raises:
        NmtError: the run has fewer checkpoints.
    """
    return [checkpoint.path for checkpoint in _enough(Run.open(path).checkpoints(), count, path)]


def pick_best(path: Path, count: int, trust_plugins: bool = False) -> list[Path]:
    """Return the paths of the `count` kept checkpoints with the best validations, worst first.

    Checkpoints are ranked as for the run's best one: by `best_metric`, then by lower loss, then by
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
    # Reversed first, because the sort is stable: of equal scores the older one ranks last.
    validated = sorted(reversed(validated), key=sort_key)
    return [checkpoint.path for checkpoint in _enough(validated, count, path)]


def average_run(paths: Sequence[Path], output: Path | None, trust_plugins: bool = False) -> Run:
    """Write a new run whose only checkpoint holds the mean weights of some checkpoints.

    A run that adapts a base becomes a complete one: the mean of the parts is merged into the base.
    Several runs need similar weights, so they should start from the same trained weights (*model
    soups*, Wortsman et al. 2022).

    Args:
        paths: checkpoints of one or several runs.
        output: directory of the new run; replaces an older average. None for "averaged" in the
            run's directory.
        trust_plugins: whether to import the plugins of a run that adapts a base.

    Returns:
        The new run.

    Raises:
        NmtError: the checkpoints cannot be averaged, `output` holds anything but an average, or is
            None for several runs.
    """
    # `last` and `best` are links: two names of one checkpoint would count twice.
    checkpoints = [Checkpoint.open(path.resolve() if path.is_symlink() else path) for path in paths]
    given: set[Path] = set()
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        if (resolved := checkpoint.path.resolve()) in given:
            raise NmtError(f"{path}: is {resolved.name}, which is given already; leave it out")
        given.add(resolved)
    runs = [Run.open(checkpoint.path.parent) for checkpoint in checkpoints]
    names = [checkpoint.path.name for checkpoint in checkpoints]
    # Means of unrelated runs are no models, so several runs need a check and a name.
    if len({run.identity for run in runs}) > 1:
        if output is None:
            raise NmtError("the checkpoints are of several runs; name the new run with --output")
        _check_related(runs, checkpoints)
        names = [f"{run.path.resolve().name}/{name}" for run, name in zip(runs, names, strict=True)]
    run = runs[0]
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
            # Training refuses to resume a run with this mark.
            recipe={**recipe, "averaged": names},
            subwords=run.subwords,
            plugins=read_plugins(run.path),
        )
        newest = max(checkpoint.update for checkpoint in checkpoints)
        # Without optimizer state: an average is translated with and never resumed.
        averaged.save(newest, weights, None, {}, {}, best=True)
        if run.has_shortlist:
            averaged.give_shortlist(run.shortlist)
    return Run.open(output)


def _check_related(runs: Sequence[Run], checkpoints: Sequence[Checkpoint]) -> None:
    """Raise an NmtError unless the mean of the weights of different runs can be a model."""
    run, weights = runs[0], checkpoints[0].weights()
    compared = {run.identity}
    for other, checkpoint in zip(runs, checkpoints, strict=True):
        if other.identity in compared:
            continue
        compared.add(other.identity)
        both = f"{run.path} and {other.path}"
        if Base.load(run.path) or Base.load(other.path):
            raise NmtError(
                f"{both}: an adaptation is averaged with its own run alone; merge each with "
                "`nmt average-checkpoints`, and average the merged runs"
            )
        if run.languages != other.languages or not run.subwords.is_same_as(other.subwords):
            raise NmtError(f"{both} differ in languages or subwords; no average can translate both")
        mine, theirs = flatten(run.section("model")), flatten(other.section("model"))
        for key in sorted(mine.keys() & theirs.keys()):
            # Dropout rates leave no trace in a model's weights.
            if mine[key] != theirs[key] and "dropout" not in key:
                raise NmtError(
                    f"{both} are different models: model.{key} is {mine[key]} and {theirs[key]}; "
                    "average runs of one model"
                )
        if (value := similarity(weights, checkpoint.weights())) < LEAST_SIMILARITY:
            raise NmtError(
                f"{both} have unrelated weights (similarity {value:.2f}), whose mean is no model; "
                "average runs that began with the same --init-from, or translate with an ensemble, "
                "by a --model for each"
            )


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

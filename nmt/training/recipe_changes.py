"""Changes of the recipe between the start of a run and a resume: allowed, or refused by name."""

from __future__ import annotations

from nmt.errors import NmtError
from nmt.models import ModelConfig
from nmt.recipe.config import build, changeable, dump, flatten
from nmt.runs import Run
from nmt.runs.recipe import RECIPE
from nmt.training.config import TrainConfig
from nmt.training.experiment import Experiment


def refuse_changes(run: Run, experiment: Experiment) -> None:
    """Raise an NmtError that names each changed key that a resumed run may not change."""
    # Rebuilt, so that keys added since the run began take their defaults, or what was done before.
    try:
        begun = Experiment(
            model=build(ModelConfig, run.recipe["model"], "model"),  # type: ignore[type-abstract]
            train=build(TrainConfig, {"batching": "bucketed", **run.recipe["train"]}, "train"),
            search=experiment.search,
        )
    except NmtError as error:
        raise NmtError(f"{run.path / RECIPE}: {error}") from None
    before, after = (
        flatten({"model": dump(version.model), "train": dump(version.train)})
        for version in (begun, experiment)
    )
    may_change = [f"model.{key}" for key in changeable(type(experiment.model))]
    may_change += [f"train.{key}" for key in changeable(TrainConfig)]
    may_change += [f"train.loss.{key}" for key in changeable(type(experiment.train.loss))]
    if experiment.train.schedule.depends_on_max_updates:
        may_change.remove("train.max_updates")
        may_change.remove("train.max_epochs")
    digests = "train.loss.teacher_digests"
    if before.get(digests) != after.get(digests):  # their paths say more
        may_change = [key for key in may_change if key != "train.loss.teachers"]
    if experiment.train.schedule.depends_on_validations:
        may_change.remove("train.valid_every")
        may_change.remove("train.valid_minutes")
    if experiment.train.init_from is not None:
        may_change.remove("train.init_from")
    if experiment.train.guided_alignment:  # they decide what is trained
        guided = ("model.alignment_layer", "model.alignment_head")
        may_change = [key for key in may_change if key not in guided]
    changed = [
        f"{key} was {before.get(key)}, is {after.get(key)}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key) and key not in may_change
    ]
    if changed:
        raise NmtError(
            f"{run.path}: the run there was begun with another recipe: {'; '.join(changed)}. "
            "Resume with the old values, or use another --save-dir for a new run; "
            "docs/recipe.md marks the keys that a resumed run may change"
        )

"""From a recipe to a trained run: the module that assembles the parts of training."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nmt.data.dataset import Dataset, Split
from nmt.data.directions import DIRECTIONS_FILE
from nmt.errors import NmtError
from nmt.inference.config import SearchConfig
from nmt.inference.translator import Translator
from nmt.messages import warn
from nmt.models import Model, ModelConfig
from nmt.plugins import plugin_sources
from nmt.preprocess.subwords import Subwords
from nmt.recipe.config import build, changeable, dump, flatten
from nmt.runs import LOG, Run
from nmt.runs.base import BASE
from nmt.runs.building import build_new
from nmt.runs.locking import locked_for_training
from nmt.runs.plugins import differing, read_plugins, write_plugins
from nmt.runs.translations import remove_translations
from nmt.runtime.distributed import World
from nmt.runtime.precision import check_precision, pick_precision
from nmt.training.config import TrainConfig
from nmt.training.initial_weights import find_base, set_initial_weights
from nmt.training.loggers import Logger
from nmt.training.loop import TrainingLoop
from nmt.training.micro_batches import fit_micro_batches
from nmt.training.mlflow import MlflowLogger
from nmt.training.preflight import check_noise_scale, preflight
from nmt.training.report import Report
from nmt.training.resuming import read_newest
from nmt.training.tensorboard import Board
from nmt.training.trainer import Trainer
from nmt.training.validation_by_direction import Validations, validation_of
from nmt.training.wandb import WandbLogger

REMEDIES = {
    "max_updates": "to continue, raise --max-updates, or start a new run with --init-from this one",
    "max_epochs": "to continue, raise --max-epochs, or start a new run with --init-from this one",
    "max_minutes": "to continue, raise --max-minutes",
    "patience": "to continue, raise --patience, or start a new run with --init-from this one",
}
"""Remedies for a run that has ended, by the reason why training ended."""


@dataclass(frozen=True)
class Experiment:
    """A model, how to train it, and how to validate it."""

    model: ModelConfig
    train: TrainConfig
    search: SearchConfig
    plugins: tuple[str, ...] = ()
    """Modules that registered names used in the sections."""

    def for_language(self, target_lang: str, is_only: bool = True) -> Experiment:
        """Return the experiment with loss and metrics set for a target language.

        Metrics are set later, by direction, if the language is not the only one.
        """
        metrics = self.train.valid_metrics
        if is_only:
            metrics = tuple(metric.for_language(target_lang) for metric in metrics)
        loss = self.train.loss.for_language(target_lang)
        config = replace(self.train, valid_metrics=metrics, loss=loss)
        return replace(self, model=self.model.resolved(), train=config)

    def recipe(self) -> dict[str, Any]:
        """The resolved values, as a recipe file holds them."""
        return {
            "plugins": list(self.plugins),
            "model": dump(self.model),
            "train": dump(self.train),
            "search": dump(self.search),
        }


def train(
    experiment: Experiment, world: World, dry_run: bool = False, trust_plugins: bool = False
) -> tuple[Run, str]:
    """Train a new run, or resume the one in `save_dir`.

    Args:
        experiment: all settings.
        world: this process among its peers.
        dry_run: whether to stop after the preflight check, and to remove the run if it is new.
        trust_plugins: whether plugins of the run in `init_from` may be imported.

    Returns:
        The run, and the reason why training ended; see :meth:`nmt.training.loop.TrainingLoop.run`.

    Raises:
        NmtError: the dataset or the run cannot be used, or the run has another recipe.
    """
    dataset = Dataset.open(Path(experiment.train.data))
    subwords = Subwords.of(dataset)
    is_only = subwords.directions is None
    experiment = experiment.for_language(dataset.manifest.target_lang, is_only)
    config = experiment.train
    warning = check_precision(config.precision, world.device)
    if warning and world.is_main:
        warn(f"train.precision: {warning}")
    torch.manual_seed(config.seed)
    sizes = subwords.source_size, subwords.target_size, subwords.shared
    model = build_new(lambda: experiment.model.build_adapted(*sizes))
    _check_use(model, config, subwords)
    split, held_out = dataset.split("train"), dataset.split("valid")
    split.check()
    held_out.check()
    with locked_for_training(Path(config.save_dir), dry_run, world.is_main):
        run = _open_run(experiment, dataset, subwords, world, dry_run)
        if world.is_main and not dry_run:
            run = run.with_recipe(_recipe_from_now_on(run, experiment))
            _keep_plugins(run, experiment)
        saved = read_newest(run, world)
        parent = set_initial_weights(
            model, run, config.init_from, subwords, trust_plugins, is_new=saved is None
        )
        if parent and config.init_from and world.is_main:
            _compare_languages(config.init_from, parent, dataset)
        trainer = Trainer(run, config, model.to(world.device), split, world)
        scores = saved.resume(trainer) if saved else {}
        del saved  # its copy of the weights takes memory
        validation = _prepare_validation(experiment, trainer, subwords, held_out)
        with _open_report(trainer, dry_run) as report:
            _introduce(experiment, trainer, report)
            _check_before_training(trainer, validation, report, dry_run)
            if dry_run:
                return run, "dry run"
            first = trainer.state.update
            if first:
                report.record("resumed", {"update": first, "processes": world.size})
            reason = TrainingLoop(trainer, validation, report, scores).run()
            if trainer.state.update == first and reason in REMEDIES:
                report.say(f"nothing to do after update {first}: {REMEDIES[reason]}")
    return run, reason


def _check_use(model: Model, config: TrainConfig, subwords: Subwords) -> None:
    """Raise an NmtError if the loss or the metrics do not fit the model or the subwords."""
    if config.loss.translates and subwords.directions and subwords.directions.tags == "target":
        raise NmtError(f"loss {config.loss.name} samples without tags; take preprocess.tags source")
    if not model.reads_source and (config.valid_metrics or config.loss.translates):
        raise NmtError(
            "a language model does not translate: set train.valid_metrics to [], "
            "train.best_metric to loss, and a loss of tokens"
        )


def _open_run(
    experiment: Experiment, dataset: Dataset, subwords: Subwords, world: World, dry_run: bool
) -> Run:
    """Return the run in the save directory; the main process creates a missing one.

    A run without a checkpoint is created anew, because the recipe may have changed. A dry run
    leaves its log and its translations.
    """
    path = Path(experiment.train.save_dir)
    manifest = dataset.manifest
    if world.is_main and not (Run.exists(path) and Run.open(path).checkpoint_paths()):
        if any(path.glob("update_*")):
            raise NmtError(
                f"{path / 'run.json'}: missing, but there are checkpoints beside it; copy the run "
                "again from where it came from, or take another --save-dir for a new run"
            )
        if not dry_run:
            if (path / LOG).exists():
                warn(f"{path}: training there left no checkpoint; it begins anew")
            (path / LOG).unlink(missing_ok=True)
            remove_translations(path)
        (path / BASE).unlink(missing_ok=True)
        if (adaptation := experiment.model.adaptation) is not None:
            find_base(experiment.train.init_from, path, subwords, adaptation).save(path)
        Run.create(
            path,
            languages=(manifest.source_lang, manifest.target_lang),
            identity=secrets.token_hex(8),
            data=manifest.fingerprint,
            recipe=experiment.recipe(),
            subwords=subwords,
            plugins=plugin_sources(experiment.plugins),
        )
    world.barrier()
    run = Run.open(path)
    if run.data != manifest.fingerprint:
        raise NmtError(
            f"{path}: this run was begun on other data than {dataset.path}; give its dataset with "
            "--data DIR, or another --save-dir"
        )
    _refuse_changes(run, experiment)
    return run


def _refuse_changes(run: Run, experiment: Experiment) -> None:
    """Raise an NmtError that names each changed key that a resumed run may not change."""
    # Rebuilt, so that keys added since the run began take their defaults, or what was done before.
    begun = Experiment(
        model=build(ModelConfig, run.recipe["model"], "model"),  # type: ignore[type-abstract]
        train=build(TrainConfig, {"batching": "bucketed", **run.recipe["train"]}, "train"),
        search=experiment.search,
    )
    before, after = (
        flatten({"model": dump(version.model), "train": dump(version.train)})
        for version in (begun, experiment)
    )
    may_change = [f"model.{key}" for key in changeable(type(experiment.model))]
    may_change += [f"train.{key}" for key in changeable(TrainConfig)]
    if experiment.train.schedule.depends_on_max_updates:
        may_change.remove("train.max_updates")
        may_change.remove("train.max_epochs")
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


def _keep_plugins(run: Run, experiment: Experiment) -> None:
    """Replace the run's copies of plugins if the user's plugins differ, with a warning."""
    sources, copies = plugin_sources(experiment.plugins), read_plugins(run.path)
    if not (changed := differing(sources, copies)):
        return
    if copies:
        warn(
            f"{', '.join(changed)}: differs from the copy with which {run.path} was trained so "
            "far; training continues with yours, and the run keeps a copy of it instead"
        )
    write_plugins(run.path, sources)


def _recipe_from_now_on(run: Run, experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's recipe with the run's `init_from`, the origin of its weights."""
    recipe = experiment.recipe()
    recipe["train"]["init_from"] = run.recipe["train"].get("init_from")
    return recipe


def _compare_languages(init_from: str, parent: Run, dataset: Dataset) -> None:
    """Warn if the weights of `init_from` were trained on other languages than the dataset's.

    A multilingual model may gain languages; its dataset has the same tags.
    """
    of_data = f"{dataset.manifest.source_lang} to {dataset.manifest.target_lang}"
    of_weights = f"{parent.source_lang} to {parent.target_lang}"
    if of_data != of_weights and DIRECTIONS_FILE not in parent.files:
        warn(
            f"--init-from {init_from} translates {of_weights}, but {dataset.path} "
            f"is {of_data}; if that is not meant, give another --data or --init-from"
        )


def _prepare_validation(
    experiment: Experiment, trainer: Trainer, subwords: Subwords, split: Split
) -> Validations:
    """Return the validation of the trainer's model, which translates as ``translate`` does."""
    config, world = experiment.train, trainer.world
    translator = Translator(
        trainer.model,
        subwords,
        experiment.search,
        world.device,
        pick_precision(config.precision, world.device),
        languages=trainer.run.languages,
    )
    return validation_of(split, translator, config.valid_metrics, world, config.precision)


def _open_report(trainer: Trainer, dry_run: bool) -> Report:
    """Return the report that continues the run's log."""
    config, run, update = trainer.config, trainer.run, trainer.state.update
    return Report(
        run.path / LOG,
        trainer.last_update,
        update,
        quiet=not trainer.world.is_main,
        max_seconds=math.inf if config.max_minutes is None else 60 * config.max_minutes,
        loggers=_open_loggers(trainer) if trainer.world.is_main and not dry_run else (),
    )


def _open_loggers(trainer: Trainer) -> list[Logger]:
    """Open the loggers that the recipe turns on.

    Raises:
        NmtError: a package is not installed, or a logger cannot begin.
    """
    run, update = trainer.run, trainer.state.update
    openers: dict[str, Callable[[], Logger]] = {
        Board.name: lambda: Board(run.path / "tensorboard", update),
        MlflowLogger.name: lambda: MlflowLogger(run),
        WandbLogger.name: lambda: WandbLogger(run),
    }
    loggers = []
    for name, begin in openers.items():
        if getattr(trainer.config, name):
            try:
                loggers.append(begin())
            except NmtError:
                raise
            except Exception as error:
                why = " ".join(str(error).split())
                remedy = f"mend that, or leave it out: --set train.{name}=false"
                raise NmtError(f"train.{name}: {why}; {remedy}") from None
    return loggers


def _check_before_training(
    trainer: Trainer, validation: Validations, report: Report, dry_run: bool
) -> None:
    """Run the preflight check of a new run; in a resumed one, find micro-batches if necessary."""
    if dry_run or trainer.state.update == 0:
        for name, value in preflight(trainer, validation):
            report.say(f"{name + ':':<26} {value}")
    elif trainer.needs_trial:
        fit_micro_batches(trainer)
        report.say(f"micro-batches of up to {trainer.loader.max_tokens:,} positions")
    check_noise_scale(trainer)


def _introduce(experiment: Experiment, trainer: Trainer, report: Report) -> None:
    """Print the model, the precision, the devices and the number of training pairs."""
    world = trainer.world
    precision = pick_precision(experiment.train.precision, world.device)
    first = trainer.state.update
    if first:
        report.say(f"resumed after update {first}")
    elif experiment.train.init_from is not None:
        report.say(f"begins with the weights of {experiment.train.init_from}")
    report.say(
        f"{experiment.model.arch} in {precision} on {world.size} x {world.device.type}, "
        f"{len(trainer.loader.split):,} training pairs"
    )

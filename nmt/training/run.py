"""From a recipe to a trained run: the module that assembles the parts of training.

The loggers that a recipe turns on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from nmt.data.dataset import Dataset, Split
from nmt.errors import NmtError
from nmt.inference import Execution, Translator
from nmt.messages import warn
from nmt.models import Model
from nmt.runs import LOG, Run
from nmt.runs.building import broken_laws_of, build_new
from nmt.runs.locking import locked_for_training
from nmt.runtime.distributed import World
from nmt.runtime.precision import (
    autocast,
    check_precision,
    pick_precision,
    precision_of_inference,
)
from nmt.subwords.subwords import Subwords
from nmt.training.config import Experiment, TrainConfig
from nmt.training.kernel_trial import choose_own_kernels
from nmt.training.loop import TrainingLoop
from nmt.training.preflight import fit_micro_batches, preflight
from nmt.training.reporting.loggers import Board, Logger, WandbLogger
from nmt.training.reporting.report import TrainingReport
from nmt.training.start import (
    compare_languages,
    keep_settings,
    open_run,
    read_newest,
    set_initial_weights,
)
from nmt.training.trainer import Trainer
from nmt.training.validation import Validations, validation_of

REMEDIES = {
    "max_updates": "to continue, raise --max-updates, or start a new run with --init-from this one",
    "max_epochs": "to continue, raise --max-epochs, or start a new run with --init-from this one",
    "max_minutes": "to continue, raise --max-minutes",
    "patience": "to continue, raise --patience, or start a new run with --init-from this one",
}
"""Remedies for a run that has ended, by the reason why training ended."""


def train(
    experiment: Experiment, world: World, dry_run: bool = False, trust_plugins: bool = False
) -> tuple[Run, str]:
    """Train a new run, or resume the one in `save_dir`.

    Args:
        experiment: all settings.
        world: this process among its peers.
        dry_run: whether to stop after the preflight check, and to remove the run if it is new.
        trust_plugins: whether plugins of `init_from` and of teachers may be imported.

    Returns:
        The run, and the reason why training ended; see :meth:`nmt.training.loop.TrainingLoop.run`.

    Raises:
        NmtError: the dataset or the run cannot be used, or the run has another recipe.
    """
    dataset = Dataset.open(Path(experiment.train.data))
    subwords = Subwords.from_dataset(dataset)
    is_only = subwords.directions is None
    experiment = experiment.for_language(dataset.manifest.target_lang, is_only)
    config = experiment.train
    # Before the run is written, which stores the checkpoints that the paths mean now.
    config = replace(config, loss=config.loss.pinned(trust_plugins))
    experiment = replace(experiment, train=config)
    _check_precision(config, world)
    # Before the model is built: initial weights follow from the seed alone.
    torch.manual_seed(config.seed)
    sizes = subwords.source_size, subwords.target_size, subwords.shared
    model = build_new(lambda: experiment.model.build_adapted(*sizes), experiment.plugins)
    _check_use(model, config, subwords)
    split, held_out = dataset.split("train"), dataset.split("valid")
    # Read once now, or a damaged file would end training in the middle of an epoch.
    split.check()
    held_out.check()
    # Two trainings in one directory would remove each other's checkpoints.
    with locked_for_training(Path(config.save_dir), dry_run, world.is_main):
        run = open_run(experiment, dataset, subwords, world, dry_run)
        saved = read_newest(run, world)
        if world.is_main and not dry_run:
            run = keep_settings(run, experiment)
        parent = set_initial_weights(
            model, run, config.init_from, subwords, trust_plugins, is_new=saved is None
        )
        if parent and config.init_from and world.is_main:
            compare_languages(config.init_from, parent, dataset)
        _check_laws(model.to(world.device), experiment, subwords, world)
        trainer = Trainer(run, config, model, split, world)
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


def _check_precision(config: TrainConfig, world: World) -> None:
    """Warn of a precision that is slow on the device; raise an NmtError if it lacks it."""
    warning = check_precision(config.precision, world.device.type)
    if warning and world.is_main:
        warn(f"train.precision: {warning}")


def _check_laws(model: Model, experiment: Experiment, subwords: Subwords, world: World) -> None:
    """Warn if a model with code of plugins breaks a law, on its device and in its precision.

    On a CPU the precision is fp32. A plugin may be a loss alone; then the model is ours.
    """
    # Our own models are tested; only a plugin's model may break a law.
    origins = {type(module).__module__.partition(".")[0] for module in model.modules()}
    if not experiment.plugins or origins <= {"nmt", "torch"}:
        return
    sizes = subwords.source_size, subwords.target_size
    wanted = "fp32" if world.device.type == "cpu" else experiment.train.precision
    precision = pick_precision(wanted, world.device)
    # Half precision rounds to 3 digits (bf16: 2), so only gross differences count there.
    tolerance = 1e-3 if precision == "fp32" else 0.1
    with autocast(precision, world.device):
        laws = broken_laws_of(model, sizes, experiment.plugins, tolerance)
    for law in laws if world.is_main else ():
        warn(f"model {type(model).__name__}: {law}; see docs/guides/extending.md")


def _check_use(model: Model, config: TrainConfig, subwords: Subwords) -> None:
    """Raise an NmtError if the loss or the metrics do not fit the model or the subwords."""
    if config.loss.translates and subwords.directions and subwords.directions.tags != "source":
        raise NmtError(f"loss {config.loss.name} samples without tags; take preprocess.tags source")
    if not model.reads_source and (config.valid_metrics or config.loss.translates):
        raise NmtError(
            "a language model does not translate: set train.valid_metrics to [], "
            "train.best_metric to loss, and a loss of tokens"
        )


def _prepare_validation(
    experiment: Experiment, trainer: Trainer, subwords: Subwords, split: Split
) -> Validations:
    """Return the validation of the trainer's model, which translates as ``translate`` does."""
    config, world = experiment.train, trainer.world
    precision = precision_of_inference(pick_precision(config.precision, world.device))
    translator = Translator(
        trainer.model,
        subwords,
        experiment.search,
        Execution(device=world.place, precision=precision),
        languages=trainer.run.languages,
    )
    # One road to a score: validation decodes and scores as `translate` and `score` do.
    return validation_of(split, translator, config.valid_metrics, world, config.precision)


def _open_report(trainer: Trainer, dry_run: bool) -> TrainingReport:
    """Return the report that continues the run's log."""
    config, run, update = trainer.config, trainer.run, trainer.state.update
    return TrainingReport(
        run.path / LOG,
        trainer.last_update,
        update,
        quiet=not trainer.world.is_main,
        max_seconds=math.inf if config.max_minutes is None else 60 * config.max_minutes,
        loggers=open_loggers(trainer) if trainer.world.is_main and not dry_run else (),
    )


def _check_before_training(
    trainer: Trainer, validation: Validations, report: TrainingReport, dry_run: bool
) -> None:
    """Run the preflight check of a new run; in a resumed one, find micro-batches if necessary."""
    if dry_run or trainer.state.update == 0:
        for name, value in preflight(trainer, validation):
            report.say(f"{name + ':':<26} {value}")
    elif trainer.needs_trial:
        fit_micro_batches(trainer)
        report.say(f"micro-batches of up to {trainer.loader.max_tokens:,} tokens")
    if trainer.needs_kernel_trial:
        chosen = choose_own_kernels(trainer)
        report.say(f"own kernels that are faster here: {', '.join(chosen) or 'none'}")


def _introduce(experiment: Experiment, trainer: Trainer, report: TrainingReport) -> None:
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


def open_loggers(trainer: Trainer) -> list[Logger]:
    """Open the loggers that the recipe turns on.

    Raises:
        NmtError: a package is not installed, or a logger cannot begin.
    """
    run, update = trainer.run, trainer.state.update
    openers: dict[str, Callable[[], Logger]] = {
        Board.name: lambda: Board(run.path / "tensorboard", update),
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

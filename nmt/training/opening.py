"""The run in the save directory: a new one, or the one to resume."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from nmt.data.dataset import Dataset
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.plugins import plugin_sources
from nmt.preprocess.subwords import Subwords
from nmt.runs import LOG, Run
from nmt.runs.base import BASE
from nmt.runs.checkpoint import checkpoints_in
from nmt.runs.plugins import differing, read_plugins, write_plugins
from nmt.runs.translations import remove_translations
from nmt.runtime.distributed import World
from nmt.training.experiment import Experiment
from nmt.training.initial_weights import find_base
from nmt.training.recipe_changes import refuse_changes


def open_run(
    experiment: Experiment, dataset: Dataset, subwords: Subwords, world: World, dry_run: bool
) -> Run:
    """Return the run in the save directory; the main process creates a missing one.

    A run without a checkpoint is created anew, because the recipe may have changed. A dry run
    leaves its log and its translations. An older run stays as it is.
    """
    path = Path(experiment.train.save_dir)
    manifest = dataset.manifest
    if world.is_main and not (Run.exists(path) and Run.open(path).checkpoint_paths()):
        if checkpoints_in(path):
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
    if "averaged" in run.recipe:
        raise NmtError(
            f"{path}: an average of checkpoints, from which training cannot resume; train a new "
            f"run with --init-from {path} and another --save-dir"
        )
    if run.data != manifest.fingerprint:
        raise NmtError(
            f"{path}: this run was begun on other data than {dataset.path}; give its dataset with "
            "--data DIR, or another --save-dir"
        )
    run.check_languages(dataset.path, (manifest.source_lang, manifest.target_lang))
    refuse_changes(run, experiment)
    return run


def keep_settings(run: Run, experiment: Experiment) -> Run:
    """Replace the recipe and the plugins that a run keeps, and return the changed run."""
    run = run.with_recipe(_recipe_from_now_on(run, experiment))
    _keep_plugins(run, experiment)
    return run


def _recipe_from_now_on(run: Run, experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's recipe with the run's `init_from`, the origin of its weights."""
    recipe = experiment.recipe()
    recipe["train"]["init_from"] = run.recipe["train"].get("init_from")
    return recipe


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

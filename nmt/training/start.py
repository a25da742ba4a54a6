"""Start a run or resume one: the save directory, the allowed changes, the initial weights."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmt.data.dataset import Dataset
from nmt.data.directions import DIRECTIONS_FILE
from nmt.data.extremes import Extremes
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.models import Model, ModelConfig
from nmt.models.adaptation import Adaptation, adaptation_weights
from nmt.recipe.config import build, changeable, dump, flatten
from nmt.recipe.plugins import plugin_sources
from nmt.runs import LOG, Base, Checkpoint, Run, find_checkpoint, load_model, set_weights
from nmt.runs.checkpoint import BASE, Tensors, checkpoints_in, weights_of
from nmt.runs.recipe import RECIPE, differing, read_plugins, write_plugins
from nmt.runs.translations import remove_translations
from nmt.runtime.distributed import World
from nmt.subwords.extension import added_pieces
from nmt.subwords.subwords import Subwords
from nmt.training.config import Experiment, TrainConfig
from nmt.training.trainer import Trainer, TrainerState


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
        # A new run would write its checkpoints over these.
        if checkpoints_in(path):
            raise NmtError(
                f"{path / 'run.json'}: missing, but there are checkpoints next to it; copy the run "
                "again from where it came from, or take another --save-dir for a new run"
            )
        if not dry_run:
            if (path / LOG).exists():
                warn(f"{path}: training there left no checkpoint; it begins anew")
            (path / LOG).unlink(missing_ok=True)
            remove_translations(path)
        # Left by a run that adapted a base, which the new run may not do.
        (path / BASE).unlink(missing_ok=True)
        if (adaptation := experiment.model.adaptation) is not None:
            find_base(experiment.train.init_from, path, subwords, adaptation).save(path)
        if subwords.context is None:  # else training joins sentences, and lines are never split
            ends = [*subwords.sentence_ends]
            subwords.extremes = Extremes.of_training(dataset.split("train"), ends)
        Run.create(
            path,
            languages=(manifest.source_lang, manifest.target_lang),
            # Random, because two runs of one recipe are different runs; no result depends on it.
            identity=secrets.token_hex(8),
            data=manifest.fingerprint,
            recipe=experiment.recipe(),
            subwords=subwords,
            plugins=plugin_sources(experiment.plugins),
        )
    # The other processes read what the first one has written.
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
    # A resume may leave --init-from out, but the origin of the weights stays true.
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
    # Another end would change rates that were already used.
    if experiment.train.schedule.depends_on_max_updates:
        may_change.remove("train.max_updates")
        may_change.remove("train.max_epochs")
    digests = "train.loss.teacher_digests"
    if before.get(digests) != after.get(digests):  # their paths say more
        may_change = [key for key in may_change if key != "train.loss.teachers"]
    if experiment.train.schedule.depends_on_validations:
        may_change.remove("train.valid_every")
        may_change.remove("train.valid_minutes")
    # A resume may leave it out, but may not name another origin.
    if experiment.train.init_from is not None:
        may_change.remove("train.init_from")
    if experiment.train.guided_alignment:  # these two decide which weights are trained
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


@dataclass(frozen=True)
class SavedTraining:
    """The content of a checkpoint, read and checked."""

    checkpoint: Checkpoint
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: TrainerState

    @classmethod
    def read(cls, path: Path) -> SavedTraining:
        """Read a checkpoint.

        Raises:
            NmtError: the checkpoint is missing or damaged, or has no state of the optimizer.
            OSError: a file cannot be read.
        """
        checkpoint = Checkpoint.open(path)
        weights, optimizer = checkpoint.weights(), checkpoint.optimizer()
        return cls(checkpoint, weights, optimizer, TrainerState.from_checkpoint(checkpoint))

    def resume(self, trainer: Trainer) -> dict[str, float]:
        """Restore a trainer, and return the scores of its last update; empty if not validated."""
        trainer.restore(self.weights, self.optimizer, self.state)
        if trainer.world.is_main:
            # A kill may have come between saving and linking.
            trainer.run.link(self.checkpoint, self.state.is_at_best)
        return self.checkpoint.scores


def read_newest(run: Run, world: World) -> SavedTraining | None:
    """Read the newest checkpoint that is undamaged for the main process; None without checkpoints.

    All processes must call this, and get the same checkpoint.

    Raises:
        NmtError: there are checkpoints, but none can be resumed, or another process cannot read the
            one that the main process resumes.
        OSError: a file cannot be read by the main process.
    """
    # The main process decides: over a network, another machine could miss the newest checkpoint for
    # a while.
    names = world.gather([path.name for path in run.checkpoint_paths()])[0]
    for name in reversed(names):
        path, saved, problem = run.path / name, None, None
        try:
            saved = SavedTraining.read(path)
        except (NmtError, OSError) as error:
            problem = error
        problems = world.gather(problem)
        # Only damage leads to an older checkpoint: what the system cannot read may be whole.
        if not isinstance(problems[0], NmtError):
            _check_all_read(path, problems)
            return saved
        if world.is_main:
            warn(str(problems[0]))
    if names:
        raise NmtError(
            f"{run.path}: none of its {len(names)} checkpoints can be resumed; begin again "
            f"with another --save-dir, and --init-from {run.path} if its weights are sound"
        )
    return None


def _check_all_read(path: Path, problems: list[NmtError | OSError | None]) -> None:
    """Raise an error if a process could not read a checkpoint.

    Args:
        path: the checkpoint.
        problems: of each process, in rank order.
    """
    if isinstance(problems[0], OSError):
        raise problems[0]
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise NmtError(
                f"rank {rank}: cannot read {path}, from which rank 0 resumes ({problem}); make its "
                "machine see the same files, and run the same command again on all machines"
            )


def find_base(init_from: str | None, run: Path, subwords: Subwords, adaptation: Adaptation) -> Base:
    """Return the checkpoint that a new run adapts.

    Args:
        init_from: the trained run or checkpoint.
        run: directory of the new run.
        subwords: subwords of the new run.
        adaptation: the adaptation of the new run.

    Raises:
        NmtError: there is no such checkpoint, it is itself an adaptation, it has parts of another
            adaptation, or it has other subwords.
    """
    if init_from is None:
        raise NmtError("model.adaptation adapts a trained model: give it with --init-from")
    parent, checkpoint = find_checkpoint(Path(init_from))
    if Base.load(parent.path) is not None:
        raise NmtError(
            f"--init-from {init_from}: an adaptation itself; merge it with "
            f"`nmt average-checkpoints {checkpoint.path} --output merged`, and adapt that run"
        )
    if (parts := parent.section("model").get("adaptation")) not in (None, dump(adaptation)):
        raise NmtError(
            f"--init-from {init_from}: it has {parts['name']} already; leave model.adaptation out "
            "to train them further, or begin with the run that they were put on"
        )
    if not subwords.is_same_as(parent.subwords):
        raise NmtError(
            f"--init-from {init_from}: its vocabulary differs from the dataset's, but an "
            "adaptation needs the same; preprocess the text again with "
            f"--subword-model {parent.path}"
        )
    return Base.from_checkpoint(checkpoint, run)


def set_initial_weights(
    model: Model,
    run: Run,
    init_from: str | None,
    subwords: Subwords,
    trust_plugins: bool,
    is_new: bool,
) -> Run | None:
    """Copy the weights that a run starts from into its model, if they are not random.

    With an adaptation, the model gets the weights of the run's base, and only the parts of the
    adaptation are trained. Without one, pieces that the trained model lacks start from means of old
    pieces.

    Args:
        model: freshly initialised model.
        run: the run in training.
        init_from: the trained run or checkpoint from which a new run starts.
        subwords: subwords of the model.
        trust_plugins: whether plugins of the run in `init_from` may be imported.
        is_new: whether the run has no checkpoint to resume from.

    Returns:
        The trained run, if this run starts from its weights.

    Raises:
        NmtError: there is no such model, or its vocabulary or shapes differ.
    """
    if parts := adaptation_weights(model):
        if (base := Base.load(run.path)) is None:
            raise NmtError(f"{run.path / BASE}: missing; restore it")
        path = run.path / base.checkpoint
        _set_weights(model, {**parts, **base.open(run.path).weights()}, path)
        for name, weight in model.named_parameters():
            # Frozen weights have no gradient and no optimizer state, which is what makes adapting
            # cheap.
            weight.requires_grad_(name in parts)
        return Run.open(path.parent) if is_new else None
    # A resumed run has weights of its own.
    if init_from is None or not is_new:
        return None
    loaded = load_model(Path(init_from), trust_plugins=trust_plugins)
    if not subwords.extends(loaded.subwords):
        raise NmtError(
            f"--init-from {init_from}: its vocabulary differs from the dataset's; preprocess the "
            f"text again with --subword-model {loaded.run.path}, or with --extend-vocabulary "
            f"{loaded.run.path} to add pieces"
        )
    weights = extended_weights(model, loaded.model, loaded.subwords, subwords)
    _set_weights(model, weights, Path(init_from))
    return loaded.run


def _set_weights(model: Model, weights: Tensors, origin: Path) -> None:
    try:
        set_weights(model, weights)
    except NmtError as error:
        raise NmtError(
            f"--init-from {origin}: {error}; give the model section of its recipe.yaml"
        ) from None


def compare_languages(init_from: str, parent: Run, dataset: Dataset) -> None:
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


SOURCE_TABLES, TARGET_TABLES = ("source_embedding",), ("target_embedding", "output")
"""Modules of a model that have a row for each piece of a side."""


def extended_weights(
    model: Model, trained: Model, old: Subwords, new: Subwords
) -> dict[str, Tensor]:
    """Return the weights of a trained model with rows for new pieces.

    In embeddings, output layer and output biases, the row of a new piece is the mean of the rows of
    the old pieces into which the old subwords segment the new piece. Its logit is then the mean of
    theirs, so no new piece is likelier than each of its old pieces.

    Args:
        model: model of the new subwords.
        trained: model of the old subwords.
        old: subwords of the trained model.
        new: subwords that extend the old ones.
    """
    added = added_pieces(new, old)
    wanted, weights = weights_of(model), weights_of(trained)
    for name, rows in weights.items():
        table, _, inner = name.partition(".")
        if table not in (*SOURCE_TABLES, *TARGET_TABLES) or name not in wanted:
            continue
        if len(rows) != len(wanted[name]):
            side = added[table in TARGET_TABLES]
            means = _means(trained.get_submodule(table), inner, rows, side)
            weights[name] = torch.cat([rows, means])
    return weights


def _means(module: nn.Module, name: str, rows: Tensor, added: list[list[int]]) -> Tensor:
    """Return the rows [new pieces, ...] of a weight of a module: means of old rows."""

    def means(table: Tensor) -> Tensor:
        return torch.stack([table[ids].mean(dim=0) for ids in added])

    parametrized, _, number = name.removeprefix("parametrizations.").rpartition(".original")
    if not parametrized:
        return means(rows)
    parametrization: Any = module.get_submodule(f"parametrizations.{parametrized}.0")
    # Weight normalisation stores gain and direction; means of these would be no mean of weights.
    originals: tuple[Tensor, ...] = parametrization.right_inverse(
        means(getattr(module, parametrized))
    )
    return originals[int(number)]

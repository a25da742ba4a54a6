"""The weights that a run starts from: those of a trained model, or of the base that it adapts."""

from __future__ import annotations

from pathlib import Path

from nmt.data.dataset import Dataset
from nmt.data.directions import DIRECTIONS_FILE
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.models import Model
from nmt.models.adaptation import Adaptation, adaptation_weights
from nmt.preprocess.subwords import Subwords
from nmt.recipe.config import dump
from nmt.runs import Base, Run, find_checkpoint, load_model, set_weights
from nmt.runs.base import BASE
from nmt.runs.weights import Tensors
from nmt.training.extension import extended_weights


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
            f"--init-from {init_from}: its vocabulary is not that of the dataset, as an adaptation "
            f"needs; preprocess the text again with --subword-model {parent.path}"
        )
    return Base.of(checkpoint, run)


def set_initial_weights(
    model: Model,
    run: Run,
    init_from: str | None,
    subwords: Subwords,
    trust_plugins: bool,
    is_new: bool,
) -> Run | None:
    """Copy the weights that a run starts from into its model, if they are not random.

    Parts of an adaptation stay as they are, get the weights of the run's base around them, and are
    alone left to train. Otherwise pieces that the vocabulary has behind those of the trained model
    begin with means of old ones.

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
            weight.requires_grad_(name in parts)
        return Run.open(path.parent) if is_new else None
    if init_from is None or not is_new:
        return None
    loaded = load_model(Path(init_from), trust_plugins=trust_plugins)
    if not subwords.extends(loaded.subwords):
        raise NmtError(
            f"--init-from {init_from}: its vocabulary is not that of the dataset; preprocess the "
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

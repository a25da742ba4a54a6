"""The model of a trained run, or the ensemble of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nmt.errors import NmtError
from nmt.inference.execution import Execution
from nmt.inference.fast.kernels import convert
from nmt.inference.fast.shortlister import Shortlister
from nmt.messages import warn
from nmt.models.base import Model
from nmt.models.ensemble import Ensemble, members_of
from nmt.runs import LoadedModel, load_model
from nmt.search.config import SearchConfig


def load_members(
    paths: Sequence[Path], device: torch.device, trust_plugins: bool = False
) -> list[LoadedModel]:
    """Load the models of runs or checkpoints, at least one; warn if a model is given twice.

    Raises:
        NmtError: a model cannot be loaded, or its target order, subwords or context differ from
            the first model's.
    """
    members = [load_model(path, device, trust_plugins) for path in paths]
    seen: dict[Path, Path] = {}
    for path, member in zip(paths, members, strict=True):
        checkpoint = member.checkpoint.path.resolve()
        if checkpoint in seen:
            warn(
                f"{path}: the same checkpoint as {seen[checkpoint]}, which counts twice in the "
                "ensemble"
            )
        seen[checkpoint] = path
        if member.subwords.target_order != members[0].subwords.target_order:
            raise NmtError(
                f"{path}: its target_order differs from {paths[0]}'s, and the models of an "
                "ensemble must share it; score an n-best list of one by the other with nmt rescore"
            )
        if not member.subwords.is_same_as(members[0].subwords):
            raise NmtError(
                f"{path}: its subwords differ from {paths[0]}'s; the models of an ensemble "
                "must share them"
            )
        if member.subwords.context != members[0].subwords.context:
            raise NmtError(
                f"{path}: its context of sentences differs from {paths[0]}'s; the models of an "
                "ensemble must share it"
            )
    return members


def one_of(members: Sequence[LoadedModel], config: SearchConfig) -> Model:
    """Return the only model, or the ensemble of several models.

    Raises:
        NmtError: the weights do not fit the models.
    """
    models = [member.model for member in members]
    if len(models) == 1:
        return models[0]
    try:
        return Ensemble(models, config.weights or [1.0] * len(models), config.ensemble)
    except ValueError as error:
        raise NmtError(f"search.weights: {error}") from None


def ensemble_of(
    members: Sequence[LoadedModel], config: SearchConfig, execution: Execution
) -> tuple[Model, Shortlister | None]:
    """Combine the members into one model for inference.

    Args:
        members: at least one loaded model, on the device of `execution`.
        config: settings of the ensemble.
        execution: settings of how the model is run.

    Returns:
        The only member or the ensemble, converted to the precision and compiled if requested; and
        the shortlister if requested, else None.

    Raises:
        NmtError: the shortlist of the first run is missing or damaged, `compile` or `cuda_graphs`
            is set for a CPU, or all members are language models.
    """
    if not any(member.model.reads_source for member in members):
        raise NmtError(
            f"{members[0].run.path}: a language model does not translate alone; add a "
            "translation model (--model RUN), or score translations with it"
        )
    if execution.compile and execution.kind == "cpu":
        raise NmtError("compile is for GPUs: a CPU would take longer; leave it out")
    if execution.cuda_graphs and execution.kind == "cpu":
        raise NmtError("cuda_graphs is for GPUs; leave it out")
    model, shortlister = one_of(members, config), None
    precision = execution.precision
    # Before the conversion, which packs the weights that it selects from.
    if execution.shortlist:
        shortlister = Shortlister(members[0].run.shortlist, model, precision)
    convert(model, precision, torch.device(execution.device))
    if execution.compile:
        compile_steps(model)
    return model, shortlister


GRAPHS = 64
"""Maximum number of compiled graphs of one model, such as for the first token, for a lone sentence
and for a full cache; a step without a graph runs uncompiled."""


def compile_steps(model: Model) -> None:
    """Compile the decoding step of a model, or of each member of an ensemble.

    torch compiles during the first steps, which takes minutes; later steps launch fewer kernels on
    the GPU.
    """
    torch._dynamo.config.recompile_limit = GRAPHS
    for member in members_of(model):
        # dynamic, because the past grows at each step; static shapes would compile anew each time.
        member.decode_step = torch.compile(member.decode_step, dynamic=True)  # type: ignore[method-assign]

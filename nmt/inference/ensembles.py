"""The model of a trained run, or of several that vote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nmt.errors import NmtError
from nmt.inference.config import SearchConfig
from nmt.inference.kernels import convert
from nmt.inference.shortlister import Shortlister
from nmt.models.base import Model
from nmt.models.ensemble import members_of
from nmt.runs import LoadedModel, load_model
from nmt.runtime.precision import InferencePrecision


def load_members(
    paths: Sequence[Path], device: torch.device, trust_plugins: bool = False
) -> list[LoadedModel]:
    """The models of runs or checkpoints, at least one.

    Raises:
        NmtError: one cannot be loaded, or has other subwords than the first.
    """
    members = [load_model(path, device, trust_plugins) for path in paths]
    for path, member in zip(paths, members, strict=True):
        if not member.subwords.is_same_as(members[0].subwords):
            raise NmtError(
                f"{path}: its subwords are not those of {paths[0]}; the models of an ensemble "
                "must share them"
            )
    return members


def ensemble_of(
    members: Sequence[LoadedModel],
    config: SearchConfig,
    precision: InferencePrecision,
    device: torch.device,
    shortlist: bool = False,
    compile: bool = False,
) -> tuple[Model, Shortlister | None]:
    """The one model, or the ensemble that several are, ready for that precision.

    With it, if wanted, what searches among the shortlist of the first run.

    Raises:
        NmtError: that run has none, or a damaged one; or a step is to be compiled for a CPU.
    """
    if compile and device.type == "cpu":
        raise NmtError("--compile is for GPUs: a CPU would take longer; leave it out")
    model, shortlister = config.one_of([member.model for member in members]), None
    if shortlist:
        shortlister = Shortlister(members[0].run.shortlist, model, precision)
    convert(model, precision, device)
    if compile:
        compile_steps(model)
    return model, shortlister


GRAPHS = 64
"""That torch keeps of one model, such as of the first token, of a lone sentence and of a cache that
is full; a step that is none of them runs as it is."""


def compile_steps(model: Model) -> None:
    """Has torch compile the step of a model or of each of an ensemble, at its first steps.

    That takes minutes; then a GPU is asked for fewer kernels.
    """
    torch._dynamo.config.recompile_limit = GRAPHS
    for member in members_of(model):
        member.decode_step = torch.compile(member.decode_step, dynamic=True)  # type: ignore[method-assign]

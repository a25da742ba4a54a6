"""The trained models that translate together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nmt.checkpoint import LoadedModel, load_model
from nmt.errors import NmtError


def load_voters(paths: Sequence[Path], device: torch.device) -> list[LoadedModel]:
    """The models of runs or checkpoints, at least one.

    Raises:
        NmtError: one cannot be loaded, or has other subwords than the first.
    """
    voters = [load_model(path, device) for path in paths]
    for path, voter in zip(paths, voters, strict=True):
        if voter.subwords.models != voters[0].subwords.models:
            raise NmtError(
                f"{path}: its subwords are not those of {paths[0]}; the models of an ensemble "
                "must share them"
            )
    return voters

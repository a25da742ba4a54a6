"""Measure the ranges of the inputs of linear layers, for :mod:`nmt.inference.calibrated`."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from nmt.data.batches import make_batch
from nmt.data.dataset import Split
from nmt.errors import NmtError
from nmt.models.base import Model
from nmt.models.transformer import Transformer
from nmt.runs.calibration import Range

BATCH = 64
"""Sentence pairs of a batch."""


@torch.no_grad()
def measure_ranges(model: Model, split: Split, sentences: int) -> dict[str, Range]:
    """Return the smallest and the largest input of each linear layer, by name.

    Args:
        model: model that was not converted; on a CPU, in evaluation mode.
        split: sentence pairs, which the model reads with their references.
        sentences: largest number of pairs, spread over the split.

    Raises:
        NmtError: the model is no Transformer.
    """
    if not isinstance(model, Transformer):
        raise NmtError(f"{type(model).__name__}: only Transformers are calibrated")
    ranges: dict[str, Range] = {}
    hooks = [
        module.register_forward_pre_hook(partial(_note, ranges, name))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    indices = np.unique(np.linspace(0, len(split) - 1, sentences).astype(np.int64))
    for start in range(0, len(indices), BATCH):
        batch = make_batch(split, indices[start : start + BATCH])
        model.project(model.decode_packs(batch.source, batch.target_input, batch.packing))
    for hook in hooks:
        hook.remove()
    return ranges


def _note(
    ranges: dict[str, Range], name: str, module: nn.Module, arguments: tuple[Tensor, ...]
) -> None:
    if not arguments[0].numel():  # an expert without a token
        return
    low, high = torch.stack(arguments[0].aminmax()).tolist()
    before = ranges.get(name, (low, high))
    ranges[name] = min(before[0], low), max(before[1], high)

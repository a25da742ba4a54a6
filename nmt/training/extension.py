"""Weights of a trained model for a vocabulary with new pieces behind the old ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nmt.models import Model
from nmt.preprocess.extension import added_pieces
from nmt.preprocess.subwords import Subwords
from nmt.runs.weights import weights_of

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
    originals: tuple[Tensor, ...] = parametrization.right_inverse(
        means(getattr(module, parametrized))
    )
    return originals[int(number)]

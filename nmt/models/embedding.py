"""Embeddings of tokens, and the cutoff of whole tokens in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.errors import NmtError


class TokenEmbedding(nn.Embedding):
    """Embedding table that sets the vectors of random tokens to zero in training.

    The other vectors stay as they are, as in the token cutoff of Shen et al. (2020).
    """

    cutoff = 0.0
    """Probability with which a token's vector is zero in training."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors [..., D] of tokens [...]."""
        embedded = super().forward(tokens)
        if not self.training or self.cutoff == 0.0:
            return embedded
        return embedded * (torch.rand(tokens.shape, device=tokens.device) >= self.cutoff)[..., None]


def set_cutoff(model: nn.Module, cutoff: float) -> None:
    """Set the probability with which each token's vector is zero in training.

    Raises:
        NmtError: the embeddings of the model cannot do that.
    """
    for table in _tables(model):
        table.cutoff = cutoff


@contextmanager
def cutoff_of(model: nn.Module, cutoff: float) -> Iterator[None]:
    """Set the cutoff of the model's tokens within the context."""
    tables = _tables(model)
    before = [table.cutoff for table in tables]
    set_cutoff(model, cutoff)
    try:
        yield
    finally:
        for table, usual in zip(tables, before, strict=True):
            table.cutoff = usual


def _tables(model: nn.Module) -> list[TokenEmbedding]:
    tables = [module for module in model.modules() if isinstance(module, TokenEmbedding)]
    if not tables:
        raise NmtError(
            f"{type(model).__name__} has no nmt.models.embedding.TokenEmbedding, which token "
            "dropout and simcut need; take train.token_dropout 0 and another loss"
        )
    return tables

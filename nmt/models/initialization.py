"""Initial weights, as in tensor2tensor of June 2017, the code of the paper."""

from __future__ import annotations

from torch import nn

from nmt.models.embedding import TokenEmbedding


def glorot(linear: nn.Linear) -> nn.Linear:
    """Set weights to U(-b, b), b = sqrt(6 / (fan_in + fan_out)), biases to 0; return the layer."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def embedding(size: int, width: int) -> TokenEmbedding:
    """Return an embedding table N(0, std width^-0.5): the first loss is near ln V even if tied."""
    table = TokenEmbedding(size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table

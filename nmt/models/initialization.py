"""How weights begin (tensor2tensor of June 2017, which the paper ran)."""

from __future__ import annotations

from torch import nn


def glorot(linear: nn.Linear) -> nn.Linear:
    """The layer with weights U(-b, b), b = sqrt(6 / (fan_in + fan_out)), and zero biases."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def embedding(size: int, width: int) -> nn.Embedding:
    """An embedding table N(0, width^-0.5): the first loss is then near ln V even when tied."""
    table = nn.Embedding(size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table

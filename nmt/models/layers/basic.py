"""Basic layers: normalisation, dropout, initial weights and embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.errors import NmtError

Norm = Literal["layer_norm", "rms_norm"]

Placement = Literal["post_norm", "pre_norm", "deep_norm"]


def make_norm(norm: Norm, width: int, epsilon: float = 1e-6) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    RMSNorm subtracts no mean and has no bias.
    """
    if norm == "rms_norm":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon)


def deep_norm_scales(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[float, float]]:
    """Return DeepNorm's (alpha, beta) of each stack of an encoder-decoder (the paper's figure 2).

    Alpha scales the residual stream. Beta scales the initial weights of feed-forward layers, values
    and attention output.
    """
    depth = encoder_layers**4 * decoder_layers
    return {
        "encoder": (0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16)),
        "decoder": ((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25),
    }


class Dropout(nn.Module):
    """Zero each element with probability `rate` in training (Srivastava et al. 2014).

    The remaining elements are scaled by 1 / (1 - rate). ``torch.nn.functional.dropout`` draws one
    Bernoulli number per element, which on a CPU is the largest cost of training outside matrix
    products. Here one 64-bit draw decides eight elements.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with some elements zeroed; same shape and dtype."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling():  # compiled: own draws
            return x * keep_mask(x, self.rate)
        return F.dropout(x, self.rate)


@torch.no_grad()
def keep_mask(x: Tensor, rate: float) -> Tensor:
    """Return 0 with probability `rate`, else 1 / (1 - rate); shape, dtype and device of `x`."""
    if x.device.type != "cpu":
        return F.dropout(torch.ones_like(x), rate)
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
    eighths = words.random_(-(1 << 63), None).view(torch.int8)[: x.numel()]
    # If the rate lies between two of the 256 levels, choose one at random for the whole mask.
    level = math.floor(rate * 256 + torch.rand(()).item())
    if level == 256:
        return torch.zeros_like(x)
    kept = torch.empty_like(x)  # converting a bool takes five times as long
    torch.ge(eighths.view(x.shape), level - 128, out=kept)
    return kept.mul_(1.0 / (1.0 - rate))


# Initial weights are tensor2tensor's of June 2017, the code of the paper.
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
            f"{type(model).__name__} has no nmt.models.layers.basic.TokenEmbedding, which token "
            "dropout and simcut need; take train.token_dropout 0 and another loss"
        )
    return tables

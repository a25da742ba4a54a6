"""Residual connections around a sublayer.

A residual has two steps: ``prepare`` returns the input of the sublayer, ``combine`` adds the
sublayer's output to the residual stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from nmt.models.dropout import Dropout

Norm = Literal["layer_norm", "rms_norm"]
Placement = Literal["post_norm", "pre_norm", "deep_norm"]


def make_norm(norm: Norm, width: int, epsilon: float = 1e-6) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    RMSNorm subtracts no mean and has no bias.
    """
    if norm == "rms_norm":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon)


class Residual(nn.Module, ABC):
    """A residual connection with a norm and dropout: the base class of all of them."""

    def __init__(self, width: int, norm: Norm, dropout: float, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.norm = make_norm(norm, width, epsilon)

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer: `x` [..., D], here unchanged."""
        return x

    @abstractmethod
    def combine(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the sublayer's output [..., D] to `x`."""


class PostNorm(Residual):
    """LayerNorm(x + Dropout(sublayer(x))) (Vaswani et al. 2017, sections 3.1 and 5.4)."""

    def combine(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the sublayer's output [..., D] to `x` and normalise."""
        normed: Tensor = self.norm(x + self.dropout(output))
        return normed


class PreNorm(Residual):
    """x + Dropout(sublayer(LayerNorm(x))) (Wang et al. 2019; tensor2tensor since October 2017)."""

    def prepare(self, x: Tensor) -> Tensor:
        """Return `x` [..., D], normalised."""
        normed: Tensor = self.norm(x)
        return normed

    def combine(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the sublayer's output [..., D] to `x`."""
        added: Tensor = x + self.dropout(output)
        return added


class DeepNorm(PostNorm):
    """LayerNorm(alpha x + Dropout(sublayer(x))) (Wang et al. 2022, *DeepNet*)."""

    def __init__(
        self, width: int, norm: Norm, dropout: float, alpha: float, epsilon: float = 1e-6
    ) -> None:
        super().__init__(width, norm, dropout, epsilon)
        self.alpha = alpha

    def combine(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the sublayer's output [..., D] to alpha times `x` and normalise."""
        return super().combine(self.alpha * x, output)


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

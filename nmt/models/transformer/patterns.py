"""Attention patterns: full self-attention, and attention to near positions alone.

A :class:`FunctionPattern` builds an attention function, which is called like
:class:`nmt.models.layers.attention.FullAttention`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.layers.attention import AttentionConfig, AttentionInput, FullAttention
from nmt.models.layers.cache import TokenMixer
from nmt.models.transformer.multi_head import SelfAttention
from nmt.models.transformer.positions import PositionPart
from nmt.recipe.registry import Registry


@dataclass(frozen=True, kw_only=True)
class AttentionPattern(ABC):
    """Attention pattern of a self-attention: the base class of all of them."""

    registry: ClassVar[Registry[AttentionPattern]]
    is_bidirectional: ClassVar[bool] = True
    """Whether the pattern can look at all positions, as an encoder requires."""

    name: str = ""
    """Name of the attention pattern."""

    @abstractmethod
    def sublayer(self, config: AttentionConfig, positions: PositionPart) -> TokenMixer:
        """Return the sublayer of one layer, with the encoding `positions`."""


patterns: Registry[AttentionPattern] = Registry("attention pattern")
AttentionPattern.registry = patterns


@dataclass(frozen=True, kw_only=True)
class FunctionPattern(AttentionPattern):
    """Attention pattern that is an attention function within multi-head self-attention."""

    @abstractmethod
    def build(self, config: AttentionConfig) -> nn.Module:
        """Return the attention function of one layer."""

    def sublayer(self, config: AttentionConfig, positions: PositionPart) -> TokenMixer:
        """Return self-attention with this function."""
        attention_fn = positions.attention_fn(config, self.build(config))
        return SelfAttention(config, attention_fn, positions.rotation(config))


@patterns.register("full")
@dataclass(frozen=True, kw_only=True)
class Full(FunctionPattern):
    """Every position attends to every position, as in the paper."""

    def build(self, config: AttentionConfig) -> nn.Module:
        """Return softmax(Q K^T / sqrt(d_k)) V."""
        return FullAttention()


@patterns.register("neighbourhood")
@dataclass(frozen=True, kw_only=True)
class Neighbourhood(FunctionPattern):
    """Attention to positions at most `radius` away (section 4), in time and memory O(n r)."""

    radius: int = 32
    """r: position i attends to j where |i - j| <= r; a decoder only to 0 <= i - j <= r."""

    def __post_init__(self) -> None:
        if self.radius < 1:
            raise ValueError(f"radius must be at least 1, not {self.radius}")

    def build(self, config: AttentionConfig) -> nn.Module:
        """Return attention in blocks."""
        return NeighbourhoodAttention(self.radius)


class NeighbourhoodAttention(nn.Module):
    """Attention of blocks of `radius` queries to the same block of keys and its neighbours."""

    def __init__(self, radius: int) -> None:
        super().__init__()
        self.radius = radius
        self.full = FullAttention()

    def forward(self, inputs: AttentionInput) -> Tensor:
        """Attend to near positions, as :class:`FullAttention` does; the mask is bool."""
        queries, keys, values, mask, causal, dropout = inputs
        length = keys.shape[2]
        if queries.shape[2] < length:  # a decoder's step
            # The cache of ordered keys has no padding and nothing later, so this window needs no
            # mask.
            first = max(0, length - 1 - self.radius)
            near_keys, near_values = keys[:, :, first:], values[:, :, first:]
            attended: Tensor = self.full(
                AttentionInput(queries, near_keys, near_values, dropout=dropout)
            )
            return attended
        size = self.radius
        # Blocks of `radius` queries meet at most three blocks of keys: O(n r) products in dense
        # matrices, where a mask over all pairs would cost O(n^2).
        end = -length % size  # up to whole blocks
        # A causal block reads its own keys and the block before; otherwise also the block after.
        beyond = 0 if causal else size
        if mask is None:
            mask = torch.ones(1, 1, 1, length, dtype=torch.bool, device=keys.device)

        def around(x: Tensor) -> Tensor:
            """Return the keys near each block, [B, H, blocks, C, keys], of `x` [B, H, S, C]."""
            # A block of zeros in front gives the first block a neighbour, too.
            padded = F.pad(x, (0, 0, size, end + beyond))
            return padded.unfold(2, 2 * size + beyond, size)

        # [B, H, blocks, r, C].
        blocks = F.pad(queries, (0, 0, 0, end)).unflatten(2, (-1, size))  # type: ignore[no-untyped-call]
        scores = (blocks * queries.shape[-1] ** -0.5) @ around(keys)  # [B, H, blocks, r, keys]
        key_positions = torch.arange(2 * size + beyond, device=keys.device) - size
        # [r, keys], key minus query position: the same in every block.
        ahead = key_positions[None] - torch.arange(size, device=keys.device)[:, None]
        near = (ahead.abs() <= self.radius) & (ahead <= (0 if causal else size))
        allowed = around(mask.transpose(2, 3)) & near  # [B, 1, blocks, r, keys]
        # A finite value: a block of padding has no allowed key, and -inf would give NaN.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(dim=-1), dropout)
        attended = weights @ around(values).transpose(-1, -2)
        return attended.flatten(2, 3)[:, :, :length]

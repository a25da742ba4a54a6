"""Attention patterns: full self-attention, and cheaper approximations.

A :class:`FunctionPattern` builds a module that is called like
:class:`nmt.models.attention.FullAttention`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.attention import FullAttention, Heads, mix_values
from nmt.models.multi_head import SelfAttention
from nmt.models.positions import PositionPart
from nmt.models.state import TokenMixer
from nmt.recipe.registry import Registry


@dataclass(frozen=True, kw_only=True)
class AttentionPattern(ABC):
    """Attention pattern of a self-attention: the base class of all of them."""

    registry: ClassVar[Registry[AttentionPattern]]
    is_causal: ClassVar[bool] = True
    """Whether the pattern can be restricted to past positions, as a decoder requires."""
    is_bidirectional: ClassVar[bool] = True
    """Whether the pattern can look at all positions, as an encoder requires."""

    name: str = ""
    """Name of the attention pattern."""

    @abstractmethod
    def sublayer(self, heads: Heads, positions: PositionPart) -> TokenMixer:
        """Return the sublayer of one layer, which encodes positions as this part does."""


patterns: Registry[AttentionPattern] = Registry("attention pattern")
AttentionPattern.registry = patterns


@dataclass(frozen=True, kw_only=True)
class FunctionPattern(AttentionPattern):
    """Attention pattern that is an attention function within multi-head self-attention."""

    @abstractmethod
    def build(self, heads: Heads) -> nn.Module:
        """Return the attention function of one layer."""

    def sublayer(self, heads: Heads, positions: PositionPart) -> TokenMixer:
        """Return self-attention with this function."""
        attention_fn = positions.attention_fn(heads, self.build(heads))
        return SelfAttention(heads, attention_fn, positions.rotation(heads))


@patterns.register("full")
@dataclass(frozen=True, kw_only=True)
class Full(FunctionPattern):
    """Every position attends to every other, the paper's."""

    def build(self, heads: Heads) -> nn.Module:
        """Return softmax(Q K^T / sqrt(d_k)) V."""
        return FullAttention()


@patterns.register("neighbourhood")
@dataclass(frozen=True, kw_only=True)
class Neighbourhood(FunctionPattern):
    """A position attends to those at most `radius` away (section 4), in time and memory O(n r)."""

    radius: int = 32
    """r: position i attends to j where |i - j| <= r; a decoder only to 0 <= i - j <= r."""

    def __post_init__(self) -> None:
        if self.radius < 1:
            raise ValueError(f"radius must be at least 1, not {self.radius}")

    def build(self, heads: Heads) -> nn.Module:
        """Return attention in blocks."""
        return NeighbourhoodAttention(self.radius)


class NeighbourhoodAttention(nn.Module):
    """Attention of blocks of `radius` queries to the same block of keys and its neighbours."""

    def __init__(self, radius: int) -> None:
        super().__init__()
        self.radius = radius

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Attend to near positions, as :func:`nmt.models.attention.mix_values`; `mask` is bool."""
        length = keys.shape[2]
        if queries.shape[2] < length:  # a decoder's step
            first = max(0, length - 1 - self.radius)
            return mix_values(queries, keys[:, :, first:], values[:, :, first:], dropout=dropout)
        size = self.radius
        end = -length % size  # up to whole blocks
        beyond = 0 if causal else size
        if mask is None:
            mask = torch.ones(1, 1, 1, length, dtype=torch.bool, device=keys.device)

        def around(x: Tensor) -> Tensor:
            """Return the keys near each block, [B, H, blocks, C, keys], of `x` [B, H, S, C]."""
            padded = F.pad(x, (0, 0, size, end + beyond))
            return padded.unfold(2, 2 * size + beyond, size)

        blocks = F.pad(queries, (0, 0, 0, end)).unflatten(2, (-1, size))  # type: ignore[no-untyped-call]
        scores = (blocks * queries.shape[-1] ** -0.5) @ around(keys)  # [B, H, blocks, r, keys]
        key_positions = torch.arange(2 * size + beyond, device=keys.device) - size
        ahead = key_positions[None] - torch.arange(size, device=keys.device)[:, None]
        near = (ahead.abs() <= self.radius) & (ahead <= (0 if causal else size))
        allowed = around(mask.transpose(2, 3)) & near  # [B, 1, blocks, r, keys]
        # A finite value: a block of padding has no allowed key, and -inf would give NaN.
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(dim=-1), dropout)
        mixed = weights @ around(values).transpose(-1, -2)
        return mixed.flatten(2, 3)[:, :, :length]


@patterns.register("performer")
@dataclass(frozen=True, kw_only=True)
class Performer(FunctionPattern):
    """Softmax approximated by positive random features, in time O(n) (Choromanski et al. 2020)."""

    is_causal: ClassVar[bool] = False

    features: int = 128
    """m, the number of random features; more features approximate the softmax better."""
    seed: int = 1
    """Random seed of the features, which are drawn once and not learned."""

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ValueError(f"features must be at least 1, not {self.features}")

    def build(self, heads: Heads) -> nn.Module:
        """Return FAVOR+ attention, with the same features in all layers."""
        return PerformerAttention(orthogonal_features(self.features, heads.key_width, self.seed))


LEAST_EXPONENT = -40.0
"""A performer scales a feature of the keys up to exp(-40) if it is smaller for every key.

The smallest normal float32 is about exp(-87).
"""


def orthogonal_features(count: int, width: int, seed: int) -> Tensor:
    """Return Gaussian vectors [count, width], orthogonal within each group of `width`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    groups = []
    for _ in range(math.ceil(count / width)):
        square = torch.randn(width, width, generator=generator, device="cpu")
        lengths = torch.randn(width, width, generator=generator, device="cpu").norm(dim=1)
        q, r = torch.linalg.qr(square)
        rotation = (q * r.diagonal().sign()).t()  # without the signs, not uniform (Mezzadri 2007)
        groups.append(rotation * lengths[:, None])
    return torch.cat(groups)[:count]


class PerformerAttention(nn.Module):
    """Normalised phi(Q) (phi(K)^T V) with phi(x) = exp(w x - |x|^2 / 2) for every feature w."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features  # no buffer: a seed gives them, checkpoints omit them

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Approximate :func:`nmt.models.attention.mix_values`.

        `mask` is bool; `causal` and `dropout` are ignored.
        """
        with torch.autocast(queries.device.type, enabled=False):  # exponentials need float32
            by_query = self._exponents(queries)
            by_key = self._exponents(keys)
            if mask is not None:
                by_key = by_key.masked_fill(~mask.transpose(2, 3), -math.inf)
            by_key = by_key - by_key.amax((-2, -1), keepdim=True)
            # The largest features of a query may be features that are 0 in float32 for every key.
            # Dividing a feature of the query and multiplying it for the keys changes no product.
            shift = (by_key.detach().amax(-2, keepdim=True) - LEAST_EXPONENT).clamp(max=0.0)
            by_query = by_query + shift
            by_query = (by_query - by_query.amax(-1, keepdim=True)).exp()  # [B, H, Q, m]
            by_key = (by_key - shift).exp()  # [B, H, S, m]
            total = by_query @ by_key.sum(2)[..., None]  # [B, H, Q, 1]
            mixed = by_query @ (by_key.transpose(-1, -2) @ values.float())
            return (mixed / total).to(values.dtype)

    def _exponents(self, x: Tensor) -> Tensor:
        if self.features.device != x.device:  # a layer that is compiled sets no attribute
            self.features = self.features.to(x.device)
        x = x.float() * x.shape[-1] ** -0.25
        return x @ self.features.t() - x.square().sum(-1, keepdim=True) / 2


@patterns.register("linformer")
@dataclass(frozen=True, kw_only=True)
class Linformer(FunctionPattern):
    """Keys and values of all positions are mixed into a few, in time O(n) (Wang et al. 2020)."""

    is_causal: ClassVar[bool] = False

    rank: int = 64
    """k, the number of mixed keys and values."""
    max_positions: int = 1024
    """Positions from this one on are ignored."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.max_positions < 1:
            raise ValueError("rank and max_positions must be at least 1")

    def build(self, heads: Heads) -> nn.Module:
        """Return attention to learned mixtures, shared by the heads of a layer."""
        return LinformerAttention(self.rank, self.max_positions)


class LinformerAttention(nn.Module):
    """Attention softmax(Q (E K)^T / sqrt(d_k)) F V; the learned E and F mix positions."""

    attends_to_tokens = False
    """Whether a weight belongs to one token; here it belongs to a mixture of all."""

    def __init__(self, rank: int, max_positions: int) -> None:
        super().__init__()
        self.mix_keys = nn.Parameter(torch.empty(rank, max_positions))
        self.mix_values = nn.Parameter(torch.empty(rank, max_positions))
        for weight in self.parameters():
            nn.init.normal_(weight, std=rank**-0.5)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Approximate :func:`nmt.models.attention.mix_values`.

        `mask` is bool; `causal` is ignored.
        """
        length = min(keys.shape[2], self.mix_keys.shape[1])
        keys, values = keys[:, :, :length], values[:, :, :length]
        if mask is not None:
            tokens = mask.transpose(2, 3)[:, :, :length].to(keys.dtype)  # [B, 1, S, 1]
            keys, values = keys * tokens, values * tokens
        keys = self.mix_keys[:, :length].to(keys.dtype) @ keys  # [B, H, k, C]
        values = self.mix_values[:, :length].to(values.dtype) @ values
        return mix_values(queries, keys, values, dropout=dropout)


def check_stacks(encoder: AttentionPattern, decoder: AttentionPattern) -> None:
    """Raise a ValueError if a pattern is not for the stack whose self-attention it is."""
    if not decoder.is_causal:
        raise ValueError(
            f"decoder_attention {decoder.name} cannot look at the past alone; "
            "use it for encoder_attention"
        )
    if not encoder.is_bidirectional:
        raise ValueError(
            f"encoder_attention {encoder.name} sees the past alone; use it for decoder_attention"
        )

"""Position encodings, added to embeddings (Vaswani et al. 2017, section 3.5) or used in attention.

A new encoding is a registered subclass of :class:`PositionPart`, which says what to define.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from nmt.models.layers.attention import AttentionConfig, AttentionInput, attention_weights
from nmt.recipe.registry import Registry

Layout = Literal["interleaved", "concatenated", "halves"]

MAX_OFFSET = 1 << 16
"""Largest position of a first token."""


def sinusoids(length: int, width: int, layout: Layout = "interleaved") -> Tensor:
    """Return the sinusoidal encodings [length, width] of the positions from 0, float32.

    Args:
        length: number of positions.
        width: number of features, even.
        layout: "interleaved" is the paper's: sin(p / 10000^(2i/width)) at 2i and the cosine of the
            same angle at 2i+1. "concatenated" is tensor2tensor's and fairseq's: all sines before
            all cosines, with the exponent i / (width/2 - 1). "halves" is Hugging Face's Marian: all
            sines before all cosines, with the paper's exponents.
    """
    pairs = width // 2
    # tensor2tensor divides by d/2 - 1 and joins two blocks, unlike the formula of section 3.5.
    steps = max(pairs - 1, 1) if layout == "concatenated" else pairs
    # 10000^(-2i/d) of section 3.5, as a power of e.
    rates = torch.exp(torch.arange(pairs) * (-math.log(10000.0) / steps))
    angles = torch.arange(length)[:, None] * rates  # [length, pairs]
    waves = (angles.sin(), angles.cos())
    if layout == "interleaved":
        # PE(pos, 2i) = sin, PE(pos, 2i + 1) = cos: the paper's order.
        return torch.stack(waves, dim=-1).flatten(1)
    return torch.cat(waves, dim=-1)


class SinusoidalPositions(nn.Module):
    """Sinusoidal encodings of consecutive positions; the table grows with the longest input."""

    def __init__(self, width: int, layout: Layout = "interleaved", offset: int = 0) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}")
        self.width = width
        self.offset = offset
        self.layout: Layout = layout
        self.table = sinusoids(256, width, layout)  # no buffer: its length may differ by process
        self._outgrown: list[Tensor] = []

    def forward(self, first: int, count: int, device: torch.device) -> Tensor:
        """Return encodings [count, D] of positions ``first`` to ``first + count - 1``."""
        start = first + self.offset
        if start + count > len(self.table):
            self._outgrown.append(self.table)  # a recorded CUDA graph may still read it
            # Doubled, so that ever longer sentences recompute the table only a few times.
            self.table = sinusoids(2 * (start + count), self.width, self.layout)
        self.table = self.table.to(device)
        return self.table[start : start + count]


class LearnedPositions(nn.Module):
    """A table of encodings, one row per position; positions beyond the table share the last row."""

    def __init__(self, count: int, width: int, std: float) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, first: int, count: int, device: torch.device) -> Tensor:
        """Return encodings [count, D] of positions ``first`` to ``first + count - 1``."""
        positions = torch.arange(first, first + count, device=device)
        # A long sentence is translated less well instead of ending with an error.
        vectors: Tensor = self.table(positions.clamp(max=self.table.num_embeddings - 1))
        return vectors


class NoPositions(nn.Module):
    """No encoding: adds nothing to the embeddings."""

    def forward(self, first: int, count: int, device: torch.device) -> Tensor:
        """Return a scalar zero, which broadcasts to [count, D]."""
        return torch.zeros((), device=device)


@dataclass(frozen=True, kw_only=True)
class PositionPart(ABC):
    """Position encoding of a Transformer: the base class of all of them.

    A subclass is a frozen, keyword-only dataclass under ``@position_parts.register("its_name")``.
    Its fields are its recipe keys. It overrides at least one method:

    - :meth:`embedding`, if the encoding is added to the embeddings;
    - :meth:`rotation`, if the encoding changes queries and keys by their positions;
    - :meth:`attention_fn`, if the encoding acts in self-attention. A subclass that replaces `inner`
      instead of wrapping it also sets ``patterns = ("full",)``.
    """

    registry: ClassVar[Registry[PositionPart]]
    patterns: ClassVar[tuple[str, ...] | None] = None
    """Names of the attention patterns that this encoding works with; None for all. A recipe that
    combines it with another one is refused. The pattern builds the `inner` of :meth:`attention_fn`.
    So name the patterns that still compute the right thing inside the encoding's own attention, and
    only "full" if the encoding ignores `inner`."""

    name: str = ""
    """Name of the position encoding."""

    @property
    def is_separate(self) -> bool:
        """Whether encoder and decoder each have a module of their own."""
        return False

    def check_pattern(self, key: str, pattern: str) -> None:
        """Raise a ValueError if the encoding does not work with the attention pattern of a key."""
        if self.patterns is not None and pattern not in self.patterns:
            raise ValueError(
                f"{self.name} positions are written into the scores of all pairs, which {key} "
                f"{pattern} does not have; use sinusoidal or learned positions"
            )

    def embedding(self, width: int, layout: Layout) -> nn.Module:
        """Return the module that gives the encodings which are added to scaled embeddings.

        One module serves the encoder and the decoder, unless they are separate. It is called like
        :class:`SinusoidalPositions`: ``module(first, count, device)`` returns encodings that
        broadcast to [count, D]. A decoder's step asks for one position (`count` is 1).

        Args:
            width: D, the width of the model.
            layout: the recipe's ``model.sinusoids``; only sinusoids depend on it.
        """
        return NoPositions()

    def rotation(self, config: AttentionConfig) -> nn.Module | None:
        """Return what changes the queries and keys of one self-attention layer by their positions.

        The module is called like :class:`Rotation`, for queries and keys alike: in a decoder's step
        for the newest alone, so a cache holds keys that are changed already. Attention itself stays
        as it is, and as fast. None if there is nothing to change.

        Args:
            config: number and widths of the heads.
        """
        return None

    def attention_fn(self, config: AttentionConfig, inner: nn.Module) -> nn.Module:
        """Return the attention function of one self-attention layer.

        Called once for every layer of both stacks, so parameters belong to one layer.
        Either wrap `inner` (call it with changed queries, keys or values), which keeps the pattern
        that the recipe chose. Or replace `inner` by a module of your own (as alibi does) and set
        ``patterns = ("full",)``, because the pattern is then lost.

        The module is called with an :class:`nmt.models.layers.attention.AttentionInput`, which says
        at which positions queries and keys are, and returns [B, H, Q, C']. In a decoder's step the
        query is the newest position, and the keys are the whole past in order.

        Args:
            config: number and widths of the heads; `inner` and the new module get equally many
                heads of keys, values and queries.
            inner: the attention function of the layer's pattern, which ignores positions.
        """
        return inner


position_parts: Registry[PositionPart] = Registry("encoding of positions")
PositionPart.registry = position_parts


@position_parts.register("none")
@dataclass(frozen=True, kw_only=True)
class Absent(PositionPart):
    """No encoding: a decoder infers positions from the causal mask, an encoder has none."""


@position_parts.register("sinusoidal")
@dataclass(frozen=True, kw_only=True)
class Sinusoidal(PositionPart):
    """Sines and cosines that are added to embeddings, the paper's."""

    offset: int = 0
    """Position of the first token; fairseq's is 2."""

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= MAX_OFFSET:
            raise ValueError(f"offset must be from 0 to {MAX_OFFSET}, not {self.offset}")

    def embedding(self, width: int, layout: Layout) -> nn.Module:
        """Return sines and cosines in `layout`."""
        return SinusoidalPositions(width, layout, self.offset)


@position_parts.register("learned")
@dataclass(frozen=True, kw_only=True)
class Learned(PositionPart):
    """A learned table that is added to embeddings (Table 3, row E)."""

    max_positions: int = 1024
    """Rows of the table; later positions share the last one."""
    separate: bool = False
    """Whether source and target have a table each, as in fairseq, or share one."""

    def __post_init__(self) -> None:
        if self.max_positions < 1:
            raise ValueError(f"max_positions must be at least 1, not {self.max_positions}")

    @property
    def is_separate(self) -> bool:
        """Whether encoder and decoder each have a table of their own."""
        return self.separate

    def embedding(self, width: int, layout: Layout) -> nn.Module:
        """Return a table with weights N(0, std width^-0.5)."""
        return LearnedPositions(self.max_positions, width, std=width**-0.5)


@position_parts.register("rotary")
@dataclass(frozen=True, kw_only=True)
class Rotary(PositionPart):
    """Rotary position embedding: queries and keys turn with their position (Su et al. 2021)."""

    # Both patterns take keys that are rotated already; other encodings write into all scores.
    patterns: ClassVar[tuple[str, ...] | None] = ("full", "neighbourhood")

    base: float = 10000.0
    """Pair i of a head's d features turns by base^(-2i/d) for every position."""

    def __post_init__(self) -> None:
        if self.base <= 0.0:
            raise ValueError(f"base must be more than 0, not {self.base:g}")

    def rotation(self, config: AttentionConfig) -> nn.Module:
        """Return the rotation."""
        return Rotation(config.d_k, self.base)


class Rotation(nn.Module):
    """Rotate pairs of features by angles in proportion to the position."""

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"rotary positions need an even width of a head, not {width}")
        self.rates = base ** (torch.arange(0, width, 2) / -width)  # no buffer: not saved

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return rotated vectors, of the same shape.

        A pair of features is a complex number, which is multiplied by exp(i angle), in float32.

        Args:
            x: [..., T, H, C].
            positions: [T] int64; or [1], of all tokens.
        """
        if self.rates.device != x.device:  # a layer that is compiled sets no attribute
            self.rates = self.rates.to(x.device)
        angles = positions[:, None, None] * self.rates  # [T, 1, C / 2]
        # Turning a pair of features is one complex product. In float32: bf16 angles of far
        # positions would be wrong by a turn.
        pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))  # [..., T, H, C / 2]
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return turned.flatten(-2).to(x.dtype)


@position_parts.register("alibi")
@dataclass(frozen=True, kw_only=True)
class Alibi(PositionPart):
    """ALiBi: scores fall with the distance, at a different rate per head (Press et al. 2021)."""

    patterns: ClassVar[tuple[str, ...] | None] = ("full",)

    def attention_fn(self, config: AttentionConfig, inner: nn.Module) -> nn.Module:
        """Return attention with a bias per distance, in place of `inner`."""
        return AlibiAttention(config.heads)


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: the penalty per position of distance.

    The slopes are 2^(-8h/H), h from 1, if the number of heads H is a power of two. Otherwise they
    are the slopes of the next lower power of two, then every second slope of the next higher one.
    """
    lower = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * head / lower) for head in range(1, lower + 1)]
    # Odd heads of twice as many: every second slope of the next power of two.
    more = [2 ** (-4 * head / lower) for head in range(1, 2 * lower + 1, 2)]
    return slopes + more[: heads - lower]


class AlibiAttention(nn.Module):
    """Attention that adds -slope * |i - j| to the score of query i and key j."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = torch.tensor(alibi_slopes(heads))  # no buffer: not saved

    def forward(self, inputs: AttentionInput) -> Tensor:
        """Attend with positions."""
        queries, keys, values, mask, causal, dropout = inputs
        if self.slopes.device != keys.device:  # once, as a copy waits for the GPU
            self.slopes = self.slopes.to(keys.device)
        # Absolute, because an encoder looks ahead, too; the paper has a decoder alone.
        distances = _distances(queries, keys).abs()
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
        # Distances are multiplied in float32 first: bf16 counts exactly only up to 256.
        scores = scores - (self.slopes[:, None, None] * distances).to(scores.dtype)
        return attention_weights(scores, mask, causal, dropout) @ values


@position_parts.register("relative")
@dataclass(frozen=True, kw_only=True)
class Relative(PositionPart):
    """Learned vectors for distances, added to keys and values (Shaw et al. 2018)."""

    patterns: ClassVar[tuple[str, ...] | None] = ("full",)

    clip: int = 16
    """k: greater distances share the vector of this one."""

    def __post_init__(self) -> None:
        if self.clip < 1:
            raise ValueError(f"clip must be at least 1, not {self.clip}")

    def attention_fn(self, config: AttentionConfig, inner: nn.Module) -> nn.Module:
        """Return attention with a vector per distance, shared by the heads, in place of `inner`."""
        return RelativeAttention(config.d_k, config.d_v, self.clip)


class RelativeAttention(nn.Module):
    """Attention that adds a^K to keys and a^V to values, both indexed by the clipped distance."""

    def __init__(self, key_width: int, value_width: int, clip: int) -> None:
        super().__init__()
        self.clip = clip
        # A distance from -k to k has its own vector; all heads share the vectors, as in the paper.
        self.keys = nn.Parameter(torch.empty(2 * clip + 1, key_width))
        self.values = nn.Parameter(torch.empty(2 * clip + 1, value_width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def forward(self, inputs: AttentionInput) -> Tensor:
        """Attend with positions."""
        queries, keys, values, mask, causal, dropout = inputs
        # Scaled once for both products, with the keys and with a^K (Shaw et al. 2018, equation 5).
        queries = queries * queries.shape[-1] ** -0.5
        indices = _distances(queries, keys).clamp(-self.clip, self.clip) + self.clip  # [Q, S]
        scores = queries @ keys.transpose(-1, -2)
        indices = indices.expand_as(scores)
        # All 2k + 1 products of a query, then a choice by distance: a vector for each pair of
        # positions would take Q * S * C numbers.
        scores = scores + (queries @ self.keys.t().to(queries.dtype)).gather(-1, indices)
        weights = attention_weights(scores, mask, causal, dropout)
        by_distance = weights.new_zeros(*weights.shape[:3], len(self.values))
        # The same for values: weights of equal distance are summed before the product.
        by_distance = by_distance.scatter_add(-1, indices, weights)  # [B, H, Q, 2k+1]
        return weights @ values + by_distance @ self.values.to(weights.dtype)


def _distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the distances [Q, S]: position of the key minus position of the query.

    The queries belong to the last keys.
    """
    positions = torch.arange(keys.shape[2], device=keys.device)
    return positions[None] - positions[keys.shape[2] - queries.shape[2] :, None]

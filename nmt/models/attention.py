"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2).

Attention is two acts: *project* makes queries, keys and values; *attend* mixes given values. A
cache sits between the two, and neither knows of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.initialization import glorot

LONG = 512
"""Queries and keys above which training on a CPU does not write down the matrix of scores."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The sizes of a multi-head attention."""

    width: int
    """d_model, of the states that come in and go out."""
    count: int
    """h."""
    key_width: int
    """d_k, of one head's queries and keys."""
    value_width: int
    """d_v, of one head's values."""
    key_value_count: int | None = None
    """Heads of keys and values, which groups of queries' heads share; None for `count`."""
    bias: bool
    """Whether the projections have biases."""
    dropout: float
    """Dropout rate on the attention weights."""

    @property
    def keys_and_values(self) -> int:
        """Heads of keys and of values."""
        return self.key_value_count or self.count


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H*C] as [B, H, T, C]."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def mix_values(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V, for shapes as in :class:`Attend`; [B, H, Q, C'].

    torch's fused kernel, except in training with sentences on a CPU: backward plain products are
    faster there, in bf16 about eight times (torch 2.13).
    """
    is_long = queries.shape[2] * keys.shape[2] > LONG**2
    if queries.device.type != "cpu" or is_long or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
    return attention_weights(scores, mask, causal, dropout) @ values


def attention_weights(scores: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """The softmax of the scores [B, H, Q, S] that are allowed, some of its weights dropped."""
    if mask is not None:
        scores = scores.where(mask, -math.inf)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return F.dropout(scores.softmax(dim=-1), dropout)


class FullAttention(nn.Module):
    """:func:`mix_values` as a module; in its place stand others that are called the same way.

    In self-attention the queries are those of the last keys: all of them, or in a decoder's step
    the newest one.
    """

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """As :func:`mix_values`."""
        return mix_values(queries, keys, values, mask, causal, dropout)


class GroupedAttention(nn.Module):
    """Groups of queries' heads that share a head of keys and values (Ainslie et al. 2023)."""

    def __init__(self, group: int, inner: nn.Module) -> None:
        super().__init__()
        self.group = group
        self.inner = inner

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, *options: Any, **named: Any
    ) -> Tensor:
        """As :func:`mix_values`, with keys and values of fewer heads."""
        keys, values = (x.repeat_interleave(self.group, dim=1) for x in (keys, values))
        mixed: Tensor = self.inner(queries, keys, values, *options, **named)
        return mixed


class Attend(nn.Module):
    """Mixes the values of each head and projects the heads back to the width of the model."""

    def __init__(self, heads: Heads, attention_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.dropout = heads.dropout
        self.attention_fn = attention_fn or FullAttention()
        if heads.keys_and_values != heads.count:
            self.attention_fn = GroupedAttention(
                heads.count // heads.keys_and_values, self.attention_fn
            )
        self.output = glorot(
            nn.Linear(heads.count * heads.value_width, heads.width, bias=heads.bias)
        )

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The attended values.

        Args:
            queries: [B, H, Q, C].
            keys: [B, H, S, C].
            values: [B, H, S, C'].
            mask: broadcastable to [B, H, Q, S], bool; True where attention is allowed.
            causal: whether position i sees only positions up to i (Q = S).

        Returns:
            [B, Q, D].
        """
        rate = self.dropout if self.training else 0.0
        mixed = self.attention_fn(queries, keys, values, mask, causal, rate)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class SelfAttention(nn.Module):
    """Queries, keys and values from the same states, through one fused projection."""

    def __init__(self, heads: Heads, attention_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.counts = [heads.count, heads.keys_and_values, heads.keys_and_values]
        widths = [heads.key_width, heads.key_width, heads.value_width]
        self.sizes = [count * width for count, width in zip(self.counts, widths, strict=True)]
        # Glorot over the fused [D, 3D] matrix, as tensor2tensor had it in 2017; the same bound
        # as fairseq's gain of 1 / sqrt(2) on three separate ones.
        self.project_in = glorot(nn.Linear(heads.width, sum(self.sizes), bias=heads.bias))
        self.attend = Attend(heads, attention_fn)
        self.sees_order = not isinstance(attention_fn or FullAttention(), FullAttention)
        """Whether what is found depends on the order of the keys."""

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, C] of the states [B, T, D]."""
        parts = self.project_in(x).split_with_sizes(self.sizes, dim=-1)
        queries, keys, values = map(split_heads, parts, self.counts)
        return queries, keys, values


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads.count
        self.memory_heads = heads.keys_and_values
        self.sizes = [self.memory_heads * width for width in (heads.key_width, heads.value_width)]
        queries = heads.count * heads.key_width
        self.project_query = glorot(nn.Linear(heads.width, queries, bias=heads.bias))
        self.project_memory = glorot(nn.Linear(heads.width, sum(self.sizes), bias=heads.bias))
        self.attend = Attend(heads)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, S, C] of the states attended to [B, S, D]."""
        keys, values = (
            split_heads(part, self.memory_heads)
            for part in self.project_memory(memory).split_with_sizes(self.sizes, dim=-1)
        )
        return keys, values

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """What the states [B, Q, D] find in the projected memory; [B, Q, D]."""
        queries = split_heads(self.project_query(x), self.heads)
        output: Tensor = self.attend(queries, keys, values, mask)
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """How much the states [B, Q, D] attend to each place: [B, Q, S], the mean over heads."""
        queries = split_heads(self.project_query(x), self.heads)
        keys = keys.repeat_interleave(self.heads // self.memory_heads, dim=1)
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
        return attention_weights(scores, mask, False, 0.0).mean(1)

"""Scaled dot-product attention with several heads (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.layers.basic import glorot

LONG = 512
"""Above this many queries and keys, training on a CPU does not materialise the score matrix."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The sizes of a multi-head attention."""

    width: int
    """d_model: width of the input and the output."""
    count: int
    """h: number of heads."""
    key_width: int
    """d_k: width of one head's queries and keys."""
    value_width: int
    """d_v: width of one head's values."""
    key_value_count: int | None = None
    """Number of heads of keys and values, shared by groups of query heads; None for `count`."""
    bias: bool
    """Whether the projections have biases."""
    dropout: float
    """Dropout rate on the attention weights."""

    @property
    def keys_and_values(self) -> int:
        """Number of heads of keys, and of values."""
        return self.key_value_count or self.count

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of heads of queries, keys and values."""
        return self.count, self.keys_and_values, self.keys_and_values

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of columns of queries, keys and values: of all their heads side by side."""
        queries, keys, values = self.counts
        return queries * self.key_width, keys * self.key_width, values * self.value_width


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [B, T, H*C] to [B, H, T, C]."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def mix_values(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention, softmax(Q K^T / sqrt(d_k)) V.

    Uses torch's fused kernel, except when training on sentences on a CPU: the backward pass of
    plain matrix products is faster there, in bf16 about eight times (torch 2.13).

    Args:
        queries: [B, H, Q, C].
        keys: [B, H, S, C].
        values: [B, H, S, C'].
        mask: broadcastable to [B, H, Q, S], bool; True where attention is allowed. Or what is
            added to the scores, in the dtype of the queries.
        causal: whether position i sees only positions up to i (Q = S).
        dropout: dropout rate on the attention weights.

    Returns:
        [B, H, Q, C'].
    """
    is_long = queries.shape[2] * keys.shape[2] > LONG**2
    if queries.device.type != "cpu" or not torch.is_grad_enabled() or is_long:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
    return attention_weights(scores, mask, causal, dropout) @ values


def attention_weights(scores: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """Return the softmax of the allowed scores [B, H, Q, S], with dropout on the weights."""
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores = scores.where(mask, -math.inf) if is_bool else scores + mask
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return F.dropout(scores.softmax(dim=-1), dropout)


class FullAttention(nn.Module):
    """:func:`mix_values` as a module, the plain attention function.

    Attention patterns and position encodings put other modules in its place, called the same way.
    In self-attention the queries belong to the last keys: to all keys in training, to the newest
    key in a decoder's step.

    The result does not depend on the order of the keys, so beams share one cache whose keys are
    interleaved (see ``SelfAttention.new_cache``). A subclass may depend on the order, and gets a
    cache of ordered keys like every other module.
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
        """Return :func:`mix_values` of the same arguments."""
        return mix_values(queries, keys, values, mask, causal, dropout)


class GroupedAttention(nn.Module):
    """Grouped-query attention: groups of query heads share a head of keys and values.

    Source: Ainslie et al. 2023.
    """

    def __init__(self, group: int, inner: nn.Module) -> None:
        super().__init__()
        self.group = group
        self.inner = inner
        self.is_plain = type(inner) is FullAttention  # a subclass may do anything

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Call the wrapped attention, plain or of a pattern, with as many heads of each kind.

        On a CPU plain attention gets the queries of a group as more queries of one head, so that a
        decoder's step reads each key once. Elsewhere, and where that would change the mask of each
        head or the order of the queries, the heads of keys and values are repeated.
        """
        is_foldable = self.is_plain and not causal and queries.is_cpu
        if is_foldable and (mask is None or mask.shape[1] == 1):
            if mask is not None and mask.shape[2] > 1:
                mask = mask.repeat(1, 1, self.group, 1)
            grouped = queries.reshape(queries.shape[0], keys.shape[1], -1, queries.shape[-1])
            mixed: Tensor = self.inner(grouped, keys, values, mask, dropout=dropout)
            return mixed.reshape(*queries.shape[:-1], -1)
        keys, values = (x.repeat_interleave(self.group, dim=1) for x in (keys, values))
        mixed = self.inner(queries, keys, values, mask, causal, dropout)
        return mixed


class Attend(nn.Module):
    """Attention of each head (`mix`), and the projection of all heads to the model (`output`)."""

    def __init__(self, heads: Heads, attention_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.dropout = heads.dropout
        self.widths = (heads.key_width, heads.value_width)
        self.counts, self.sizes = heads.counts, heads.sizes
        """Numbers of heads, and of their columns, of queries, keys and values."""
        self.attention_fn = attention_fn or FullAttention()
        self.is_plain = type(self.attention_fn) is FullAttention  # a subclass may do anything
        """Whether this is the paper's attention, of all heads or of groups of them."""
        if heads.keys_and_values != heads.count:
            self.attention_fn = GroupedAttention(
                heads.count // heads.keys_and_values, self.attention_fn
            )
        self.output = glorot(
            nn.Linear(heads.count * heads.value_width, heads.width, bias=heads.bias)
        )

    @property
    def rate(self) -> float:
        """Dropout rate on the attention weights, 0 outside training."""
        return self.dropout if self.training else 0.0

    def mix(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return the values mixed by the attention weights of each head.

        Args:
            queries: [B, H, Q, C].
            keys: [B, H, S, C].
            values: [B, H, S, C'].
            mask: see :func:`mix_values`.
            causal: whether position i sees only positions up to i (Q = S).

        Returns:
            [B, Q, H * C'], heads side by side.
        """
        mixed: Tensor = self.attention_fn(queries, keys, values, mask, causal, self.rate)
        return mixed.transpose(1, 2).flatten(2)

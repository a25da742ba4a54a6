"""Scaled dot-product attention with several heads (Vaswani et al. 2017, section 3.2).

An *attention function* is a module that maps an :class:`AttentionInput` to the weighted means of
the values: :class:`FullAttention`, or what a pattern or an encoding of positions replaces it by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.layers.basic import ResidualModule, glorot

LONG = 512
"""Above this many queries and keys, training on a CPU does not materialise the score matrix."""


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The sizes of a multi-head attention, by the paper's symbols."""

    d_model: int
    """Width of the input and the output."""
    heads: int
    """h: number of heads."""
    d_k: int
    """Width of one head's queries and keys."""
    d_v: int
    """Width of one head's values."""
    key_value_heads: int | None = None
    """Number of heads of keys and values, shared by groups of query heads; None for `heads`."""
    bias: bool
    """Whether the projections have biases."""
    dropout: float
    """Dropout rate on the attention weights."""

    @property
    def qkv_heads(self) -> tuple[int, int, int]:
        """Numbers of heads of queries, keys and values."""
        shared = self.key_value_heads or self.heads
        return self.heads, shared, shared

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Numbers of columns of queries, keys and values: of all their heads side by side."""
        queries, keys, values = self.qkv_heads
        return queries * self.d_k, keys * self.d_k, values * self.d_v

    def new_projection(self, size: int) -> nn.Linear:
        """Return a new projection from the model to `size` columns."""
        # All heads in one matrix: the projections W_1 ... W_h of section 3.2.2 side by side.
        return glorot(nn.Linear(self.d_model, size, bias=self.bias))

    def new_attention_fn(self, inner: nn.Module | None = None) -> nn.Module:
        """Return `inner`, by default full attention, as the attention function of these heads."""
        inner = FullAttention() if inner is None else inner
        heads, shared, _ = self.qkv_heads
        return inner if heads == shared else GroupedAttention(heads // shared, inner)

    def new_output(self) -> nn.Linear:
        """Return a new projection from all heads, side by side, to the model."""
        return glorot(nn.Linear(self.heads * self.d_v, self.d_model, bias=self.bias))


class AttentionInput(NamedTuple):
    """The argument of an attention function.

    In self-attention the queries belong to the LAST keys: of Q queries and S keys, query i is at
    position S - Q + i and key j at position j. In training Q = S; in a decoder's step Q = 1.
    """

    queries: Tensor
    """[B, H, Q, C]."""
    keys: Tensor
    """[B, H, S, C]."""
    values: Tensor
    """[B, H, S, C']."""
    mask: Tensor | None = None
    """Broadcastable to [B, H, Q, S]. Either bool, True where attention is allowed; or a bias that
    is added to the scores, in the dtype of the queries."""
    causal: bool = False
    """Whether position i sees only positions up to i (Q = S)."""
    dropout: float = 0.0
    """Dropout rate on the attention weights."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [B, T, H*C] to [B, H, T, C]."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def split_parts(x: Tensor, sizes: Sequence[int], heads: Sequence[int]) -> tuple[Tensor, ...]:
    """Return queries, keys or values [B, H, T, C] each, which lie side by side in `x` [B, T, W].

    Args:
        x: the projection.
        sizes: the number of columns of each part.
        heads: the number of heads of each part.
    """
    shape, parts = x.shape[:2], zip(x.split_with_sizes(list(sizes), -1), heads, strict=True)
    return tuple([part.view(*shape, n, part.shape[2] // n).transpose(1, 2) for part, n in parts])


def attention_weights(
    scores: Tensor, mask: Tensor | None, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """Return the softmax of the allowed scores [B, H, Q, S], with dropout on the weights."""
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        # Minus infinity before the softmax gives a forbidden key the weight 0 (section 3.2.3).
        scores = scores.where(mask, -math.inf) if is_bool else scores + mask
    if causal:
        scores = scores.where(causal_mask(scores), -math.inf)
    # Dropout on weights is tensor2tensor's of October 2017; section 5.4 has none.
    return F.dropout(scores.softmax(dim=-1), dropout)


def causal_mask(scores: Tensor) -> Tensor:
    """Return the mask [Q, S] of scores [..., Q, S]: True where a query may see a key.

    Plain products on padded sentences call this function. Every other kernel masks by itself:

    - torch's fused kernel, which is told `is_causal`;
    - packs on a CPU, by :meth:`nmt.data.packing.Pack.bias`;
    - packs on a GPU, by `window_size` in `kernels/gpu.py` and by `_scores` in `kernels/triton.py`;
    - :class:`nmt.models.transformer.patterns.NeighbourhoodAttention`.
    """
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()


class FullAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V, the paper's attention function.

    The result does not depend on the order of the keys, so beams share one cache whose keys are
    interleaved (see ``SelfAttention.new_cache``). A subclass may depend on the order, and gets a
    cache of ordered keys like every other module.
    """

    def forward(self, inputs: AttentionInput) -> Tensor:
        """Return the weighted means of the values [B, H, Q, C'].

        Uses torch's fused kernel, except when training on sentences on a CPU: the backward pass of
        plain matrix products is faster there, in bf16 about eight times (torch 2.13).
        """
        queries, keys, values, mask, causal, dropout = inputs
        is_long = queries.shape[2] * keys.shape[2] > LONG**2
        if queries.device.type != "cpu" or not torch.is_grad_enabled() or is_long:
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
            )
        # Equation 1. Scaling the queries takes Q * C products, scaling the scores would take Q * S.
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
        return attention_weights(scores, mask, causal, dropout) @ values


class GroupedAttention(nn.Module):
    """Grouped-query attention: groups of query heads share a head of keys and values.

    Source: Ainslie et al. 2023.
    """

    def __init__(self, group: int, inner: nn.Module) -> None:
        super().__init__()
        self.group = group
        self.inner = inner
        self.is_plain = type(inner) is FullAttention  # a subclass may do anything

    def forward(self, inputs: AttentionInput) -> Tensor:
        """Call the inner attention function with equal numbers of query and key/value heads.

        On a CPU plain attention gets the queries of a group as more queries of one head, so that a
        decoder's step reads each key once. Elsewhere, and where that would change the mask of each
        head or the order of the queries, the heads of keys and values are repeated.
        """
        queries, keys, values, mask, causal, _ = inputs
        # A causal mask or a pattern depends on the order of the queries, which folding changes.
        is_foldable = self.is_plain and not causal and queries.is_cpu
        if is_foldable and (mask is None or mask.shape[1] == 1):
            if mask is not None and mask.shape[2] > 1:
                # Folded queries [B, G, group * Q, C] lie head after head; the mask's rows repeat
                # for each.
                mask = mask.repeat(1, 1, self.group, 1)
            grouped = queries.reshape(queries.shape[0], keys.shape[1], -1, queries.shape[-1])
            attended: Tensor = self.inner(inputs._replace(queries=grouped, mask=mask))
            return attended.reshape(*queries.shape[:-1], -1)
        keys, values = (x.repeat_interleave(self.group, dim=1) for x in (keys, values))
        attended = self.inner(inputs._replace(keys=keys, values=values))
        return attended


class MultiHeadAttention(ResidualModule):
    """The sizes and the attention function of self-attention and cross-attention.

    A subclass makes its modules in the order in which it computes them, which is the order of the
    first draws and of the weights in an optimizer.
    """

    attention_fn: nn.Module
    output: nn.Linear
    """The projection of all heads to the model."""

    def __init__(self, config: AttentionConfig, attention_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.qkv_heads, self.qkv_sizes = config.qkv_heads, config.qkv_sizes
        self.widths = (config.d_k, config.d_v)
        self.dropout = config.dropout
        self.is_plain = attention_fn is None or type(attention_fn) is FullAttention
        """Whether this is the paper's attention, of all heads or of groups of them."""

"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2).

Attention is two acts: *project* makes queries, keys and values; *attend* mixes given values. A
cache sits between the two, and neither knows of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.initialization import glorot

LONG = 512
"""Keys above which attention on a CPU does not write down its whole matrix of scores."""


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
    bias: bool
    """Whether the projections have biases."""
    dropout: float
    """Dropout rate on the attention weights."""


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

    torch's fused kernel, except for sentences on a CPU: there plain products are faster, in bf16
    and backward about eight times (torch 2.13).
    """
    if queries.device.type != "cpu" or keys.shape[2] > LONG:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return F.dropout(scores.softmax(dim=-1), dropout) @ values


class Attend(nn.Module):
    """Mixes the values of each head and projects the heads back to the width of the model."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.dropout = heads.dropout
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
        mixed = mix_values(queries, keys, values, mask, causal, rate)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class SelfAttention(nn.Module):
    """Queries, keys and values from the same states, through one fused projection."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads.count
        keys, values = heads.count * heads.key_width, heads.count * heads.value_width
        self.sizes = [keys, keys, values]
        # Glorot over the fused [D, 3D] matrix, as tensor2tensor had it in 2017; the same bound
        # as fairseq's gain of 1 / sqrt(2) on three separate ones.
        self.project_in = glorot(nn.Linear(heads.width, sum(self.sizes), bias=heads.bias))
        self.attend = Attend(heads)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, C] of the states [B, T, D]."""
        queries, keys, values = (
            split_heads(part, self.heads) for part in self.project_in(x).split(self.sizes, dim=-1)
        )
        return queries, keys, values


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads.count
        keys, values = heads.count * heads.key_width, heads.count * heads.value_width
        self.sizes = [keys, values]
        self.project_query = glorot(nn.Linear(heads.width, keys, bias=heads.bias))
        self.project_memory = glorot(nn.Linear(heads.width, sum(self.sizes), bias=heads.bias))
        self.attend = Attend(heads)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, S, C] of the states attended to [B, S, D]."""
        keys, values = (
            split_heads(part, self.heads)
            for part in self.project_memory(memory).split(self.sizes, dim=-1)
        )
        return keys, values

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """What the states [B, Q, D] find in the projected memory; [B, Q, D]."""
        queries = split_heads(self.project_query(x), self.heads)
        output: Tensor = self.attend(queries, keys, values, mask)
        return output

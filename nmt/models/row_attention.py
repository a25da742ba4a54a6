"""Attention on rows: each row holds several whole sentences of a pack, and a bias keeps them apart.

:mod:`nmt.data.packing` arranges the rows.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nmt.data.packing import Pack, Packing
from nmt.models.dropout import keep_mask

_SIDE_BY_SIDE = {1: (3,), 2: (1, 2), 3: (1, 1, 1)}
"""How many of queries, keys and values lie side by side in each of so many tensors."""


class RowAttention(torch.autograd.Function):
    """Scaled dot-product attention on rows of several sentences, with its gradient.

    One function instead of a dozen operations: heads are split while tokens move to rows, and most
    operations work in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        packs: tuple[Pack, Pack],
        heads: int,
        causal: bool,
        dropout: float,
        *parts: Tensor,
    ) -> Tensor:
        """Return the mixed values [P, H * C'].

        Args:
            ctx: autograd's context.
            packs: of the queries and of the keys.
            heads: H.
            causal: whether a query sees only the keys up to itself.
            dropout: dropout rate on the attention weights.
            parts: queries [P, H * C], keys [P', H * C] and values [P', H * C']; or, if C = C', all
                three side by side in one tensor, or keys and values in a second one.
        """
        of_queries, of_keys = packs
        counts = _SIDE_BY_SIDE[len(parts)]
        with torch.autocast(parts[0].device.type, enabled=False):
            queries, keys, values = (
                row
                for at, (part, count) in enumerate(zip(parts, counts, strict=True))
                for row in _to_rows(part, of_keys if at else of_queries, count, heads)
            )
            queries *= queries.shape[-1] ** -0.5
            scores = torch.bmm(queries, keys.transpose(1, 2))  # [R * H, L, L']
            by_row = scores.view(of_queries.shape[0], heads, *scores.shape[1:])
            by_row += of_queries.bias(of_keys, causal, scores.dtype)
            weights = torch.softmax(scores, -1, out=scores)
            kept = keep_mask(weights, dropout) if dropout else None
            mixed = torch.bmm(weights if kept is None else weights * kept, values)
        ctx.save_for_backward(queries, keys, values, weights, kept)
        ctx.packs, ctx.heads, ctx.counts = packs, heads, counts
        return _from_rows((mixed,), of_queries, heads)

    @staticmethod
    def backward(ctx: Any, d_mixed: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parts, after None for each other argument."""
        queries, keys, values, weights, kept = ctx.saved_tensors
        (of_queries, of_keys), heads = ctx.packs, ctx.heads
        [d_rows] = _to_rows(d_mixed.contiguous(), of_queries, 1, heads)
        d_rows.view(-1, d_rows.shape[-1]).index_fill_(0, of_queries.empty_places(heads), 0.0)
        used = weights if kept is None else weights * kept
        d_values = torch.bmm(used.transpose(1, 2), d_rows)
        d_weights = torch.bmm(d_rows, values.transpose(1, 2))
        if kept is not None:
            d_weights *= kept
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        d_queries = torch.bmm(d_scores, keys).mul_(queries.shape[-1] ** -0.5)
        d_keys = torch.bmm(d_scores.transpose(1, 2), queries)
        d_all = iter((d_queries, d_keys, d_values))
        d_parts = (
            _from_rows(tuple(islice(d_all, count)), of_keys if at else of_queries, heads)
            for at, count in enumerate(ctx.counts)
        )
        return None, None, None, None, *d_parts


def _to_rows(x: Tensor, pack: Pack, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Return each part of the tokens `x` [P, parts * H * C] as rows of heads [R * H, L, C]."""
    (rows, length), width = pack.shape, x.shape[1] // (parts * heads)
    arranged = x.view(-1, width).index_select(0, pack.to_rows(parts, heads))
    return arranged.view(parts, rows * heads, length, width).unbind(0)


def _from_rows(arranged: tuple[Tensor, ...], pack: Pack, heads: int) -> Tensor:
    """Return the inverse of :func:`_to_rows`: parts of rows as tokens [P, parts * H * C]."""
    vectors = torch.cat(arranged).flatten(0, 1) if len(arranged) > 1 else arranged[0].flatten(0, 1)
    tokens = vectors.index_select(0, pack.from_rows(len(arranged), heads))
    width = len(arranged) * heads * vectors.shape[1]
    return tokens.view(tokens.numel() // width, width)


def link_weights(queries: Tensor, keys: Tensor, packing: Packing, links: Tensor) -> Tensor:
    """Return attention weights [n], averaged over heads.

    Args:
        queries: [P, H, C], of the target's tokens.
        keys: [P', H, C], of the source's tokens.
        packing: the lengths of the sentences.
        links: [2, n] int64, source and target tokens of a sentence, whose weights are returned.
    """
    if not links.shape[1]:
        return queries.flatten()[:0].float()
    of_queries, of_keys = packing.target, packing.source
    heads = queries.shape[1]
    [queries], [keys] = (
        _to_rows(part.flatten(1), pack, 1, heads)
        for part, pack in ((queries, of_queries), (keys, of_keys))
    )
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(1, 2)  # [R * H, L, L']
    by_row = scores.float().view(of_queries.shape[0], heads, *scores.shape[1:])
    weights: Tensor = (by_row + of_queries.bias(of_keys, False, by_row.dtype)).softmax(-1).mean(1)
    sources, targets = links
    columns = of_keys.places[sources] % of_keys.shape[1]
    return weights.flatten(0, 1)[of_queries.places[targets], columns]

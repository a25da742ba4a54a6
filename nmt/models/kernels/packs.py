"""Multi-head attention on packs: the tokens of a batch one after another, without padding.

The results equal attention on padded sentences (:mod:`nmt.models.layers.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.packing import Pack, Packing
from nmt.models.kernels.gpu import (
    compute_dtype,
    fits_own_kernels,
    flash_attention,
    has_flash,
    own_attention,
)
from nmt.models.layers.attention import (
    LONG,
    AttentionInput,
    MultiHeadAttention,
    split_heads,
)
from nmt.models.layers.basic import keep_mask
from nmt.runtime.own_kernels import has_own_kernels

PackKernel = Callable[[tuple[Tensor, ...], tuple[Pack, Pack], int, bool], Tensor]
"""Plain attention on packs, with the arguments of :func:`flash_attention`."""


def choose_kernel(attention: MultiHeadAttention, packs: tuple[Pack, Pack]) -> PackKernel | None:
    """Return the fastest plain attention on packs, for all layers that are like `attention`.

    None if no kernel fits: the rows are longer than `LONG` tokens. The caller then pads the
    sentences.
    """
    device = packs[0].device
    dropout = attention.dropout if attention.training else 0.0
    if has_flash(device, compute_dtype(device), attention.widths, dropout):
        return own_attention if fits_own_kernels(packs, attention.widths[0]) else flash_attention
    # Rows store scores [R * H, L, L'], which grow with the square of their length.
    if all(pack.shape[1] <= LONG for pack in packs):
        return partial(row_attention, dropout=dropout)
    return None


def attend_by_kernel(
    kernel: PackKernel,
    attention: MultiHeadAttention,
    parts: Sequence[Tensor],
    packs: tuple[Pack, Pack],
    causal: bool,
) -> Tensor:
    """Return what :func:`attend_padded` returns, by a kernel for plain attention.

    Heads of keys and values are repeated for the queries of their group.
    """
    heads = attention.qkv_heads[0]
    # Kernels take three parts of equal width; grouped heads and another d_v are taken apart.
    if len({*attention.qkv_sizes}) > 1:
        parts = [
            part.view(len(part), count, -1).repeat_interleave(heads // count, 1).flatten(1)
            for part, count in zip(_apart(attention, parts), attention.qkv_heads, strict=True)
        ]
    return kernel(tuple(parts), packs, heads, causal)


def row_attention(
    parts: tuple[Tensor, ...],
    packs: tuple[Pack, Pack],
    heads: int,
    causal: bool,
    dropout: float = 0.0,
) -> Tensor:
    """Return what :func:`flash_attention` returns, with dropout, by rows of several sentences."""
    attended: Tensor = RowAttention.apply(  # type: ignore[no-untyped-call]
        packs, heads, causal, dropout, *parts
    )
    return attended


def attend_padded(
    attention: MultiHeadAttention,
    parts: Sequence[Tensor],
    packs: tuple[Pack, Pack],
    causal: bool = False,
) -> Tensor:
    """Return the weighted means of the values [P, H * C'], by attention on padded sentences.

    Args:
        attention: the attention function and its sizes.
        parts: queries, keys and values side by side, [P, the sum of ``attention.qkv_sizes``]; or
            queries [P, the first size], and keys and values side by side [P', the other sizes].
        packs: of the queries and of the keys.
        causal: whether a query sees only the keys up to itself.
    """
    of_queries, of_keys = packs
    queries, keys, values = (
        split_heads(pack.pad(part), count)
        for part, pack, count in zip(
            _apart(attention, parts),
            (of_queries, of_keys, of_keys),
            attention.qkv_heads,
            strict=True,
        )
    )
    mask = None if causal else of_keys.mask[:, None, None]  # [B, 1, 1, S]; padding comes last
    dropout = attention.dropout if attention.training else 0.0
    inputs = AttentionInput(queries, keys, values, mask, causal, dropout)
    attended = attention.attention_fn(inputs)  # [B, H, T, C']
    return of_queries.unpad(attended.transpose(1, 2).flatten(2))


def _apart(attention: MultiHeadAttention, parts: Sequence[Tensor]) -> list[Tensor]:
    """Return queries, keys and values, which lie side by side; see :func:`attend_padded`."""
    *queries, rest = parts
    return [*queries, *rest.split_with_sizes(attention.qkv_sizes[len(queries) :], 1)]


def is_compilable(model: nn.Module, device: torch.device) -> bool:
    """Return whether torch can compile all attention of a model on packs, in training.

    That is so if torch's fused kernels compute it, in the dtype of autocast.
    """
    if device.type == "cuda":
        has_own_kernels()  # the first call cannot be compiled
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    dtype = compute_dtype(device)
    return bool(layers) and all(
        layer.is_plain and has_flash(device, dtype, layer.widths, layer.dropout) for layer in layers
    )


_SIDE_BY_SIDE = {1: (3,), 2: (1, 2), 3: (1, 1, 1)}
"""Number of arguments: how many of (queries, keys, values) each argument holds. Two tensors hold
queries, then keys with values."""


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
        """Return the weighted means of the values [P, H * C'].

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
        # An autograd function gets tensors that autocast has cast already; in here it would cast
        # again at each product.
        with torch.autocast(parts[0].device.type, enabled=False):
            queries, keys, values = (
                row
                for at, (part, count) in enumerate(zip(parts, counts, strict=True))
                for row in _to_rows(part, of_keys if at else of_queries, count, heads)
            )
            # In place: `_to_rows` made a copy, so the projection stays unscaled.
            queries *= queries.shape[-1] ** -0.5
            scores = torch.bmm(queries, keys.transpose(1, 2))  # [R * H, L, L']
            by_row = scores.view(of_queries.shape[0], heads, *scores.shape[1:])
            # An added bias is one pass over the scores; a boolean mask with -inf is three.
            by_row += of_queries.bias(of_keys, causal, scores.dtype)
            # In place: scores are the largest tensors of attention, and the gradient needs weights
            # alone.
            weights = torch.softmax(scores, -1, out=scores)
            kept = keep_mask(weights, dropout) if dropout else None
            attended = torch.bmm(weights if kept is None else weights * kept, values)
        # As rows, so that the backward pass arranges only the gradient.
        ctx.save_for_backward(queries, keys, values, weights, kept)
        ctx.packs, ctx.heads, ctx.counts = packs, heads, counts
        return _from_rows((attended,), of_queries, heads)

    @staticmethod
    def backward(ctx: Any, d_attended: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parts, after None for each other argument."""
        queries, keys, values, weights, kept = ctx.saved_tensors
        (of_queries, of_keys), heads = ctx.packs, ctx.heads
        [d_rows] = _to_rows(d_attended.contiguous(), of_queries, 1, heads)
        # Empty places read an arbitrary token in the forward pass and must not give it a gradient.
        d_rows.view(-1, d_rows.shape[-1]).index_fill_(0, of_queries.empty_places(heads), 0.0)
        # Dropout multiplies by the forward pass's mask; a new draw would be another function.
        used = weights if kept is None else weights * kept
        # Of O = W V: dV = W^T dO, dW = dO V^T.
        d_values = torch.bmm(used.transpose(1, 2), d_rows)
        d_weights = torch.bmm(d_rows, values.transpose(1, 2))
        if kept is not None:
            d_weights *= kept
        # dS = W (dW - sum of W dW) in each row.
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        # The saved queries are scaled: `d_keys` needs no factor then, and `d_queries` gets it.
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
        # Empty, yet part of the graph: a batch without links can be differentiated, too.
        return queries.flatten()[:0].float()
    of_queries, of_keys = packing.target, packing.source
    heads = queries.shape[1]
    [queries], [keys] = (
        _to_rows(part.flatten(1), pack, 1, heads)
        for part, pack in ((queries, of_queries), (keys, of_keys))
    )
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(1, 2)  # [R * H, L, L']
    # float32, because guided alignment takes the logarithm of small weights.
    by_row = scores.float().view(of_queries.shape[0], heads, *scores.shape[1:])
    weights: Tensor = (by_row + of_queries.bias(of_keys, False, by_row.dtype)).softmax(-1).mean(1)
    sources, targets = links
    columns = of_keys.places[sources] % of_keys.shape[1]
    return weights.flatten(0, 1)[of_queries.places[targets], columns]


def shapes_are_costly(device: torch.device) -> bool:
    """Return whether products of a new shape need a new kernel, as in half precision."""
    return torch.is_autocast_enabled(device.type)


def filled_if_costly(
    source: Tensor, target: Tensor, packing: Packing
) -> tuple[Tensor, Tensor, Packing]:
    """Return the arguments, :func:`filled` if shapes are costly or there are no tokens."""
    is_filled = torch.compiler.is_compiling()  # the caller did, as numpy is not compiled
    # In half precision every new shape needs new kernels; rounded sizes make few shapes.
    if not is_filled and (shapes_are_costly(source.device) or not len(target)):
        return filled(source, target, packing)
    return source, target, packing


def filled(source: Tensor, target: Tensor, packing: Packing) -> tuple[Tensor, Tensor, Packing]:
    """Return tokens and packing with one more sentence of padding; see `Packing.rounded`.

    A packing whose number of tokens is round already stays as it is.
    """
    if packing.is_round:
        return source, target, packing
    # One sentence of padding at the end costs nothing in the loss and changes no other sentence.
    packing = packing.rounded
    source, target = (
        F.pad(ids, (0, int(side.lengths[-1])))
        for ids, side in ((source, packing.source), (target, packing.target))
    )
    return source, target, packing

"""Multi-head attention on packs: the tokens of a batch one after another, without padding.

The results are those of :mod:`nmt.models.attention` for padded sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import signature
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.packing import Pack, Packing
from nmt.messages import one_line, warn
from nmt.models.attention import LONG, Attend, split_heads
from nmt.models.dropout import keep_mask


def shapes_are_costly(device: torch.device) -> bool:
    """Return whether products of a new shape need a new kernel, as in half precision."""
    return torch.is_autocast_enabled(device.type)


def filled_if_costly(
    source: Tensor, target: Tensor, packing: Packing
) -> tuple[Tensor, Tensor, Packing]:
    """Return the arguments, :func:`filled` if shapes are costly or there are no tokens."""
    is_filled = torch.compiler.is_compiling()  # the caller did, as numpy is not compiled
    if not is_filled and (shapes_are_costly(source.device) or not len(target)):
        return filled(source, target, packing)
    return source, target, packing


def filled(source: Tensor, target: Tensor, packing: Packing) -> tuple[Tensor, Tensor, Packing]:
    """Return tokens and packing with one more sentence of padding; see `Packing.rounded`.

    Nothing is added to a packing that is round already.
    """
    if packing.is_round:
        return source, target, packing
    packing = packing.rounded
    source, target = (
        F.pad(ids, (0, int(side.lengths[-1])))
        for ids, side in ((source, packing.source), (target, packing.target))
    )
    return source, target, packing


def mix_packs(
    attend: Attend,
    projected: tuple[Tensor, ...],
    sizes: Sequence[int],
    counts: Sequence[int],
    packs: tuple[Pack, Pack],
    causal: bool = False,
) -> Tensor:
    """Return the values [P, H * C], mixed by their weights.

    Args:
        attend: the attention after its projections.
        projected: queries, keys and values side by side [P, ...]; or queries [P, ...], and keys and
            values side by side [P', ...].
        sizes: numbers of columns of queries, keys and values.
        counts: numbers of heads of queries, keys and values.
        packs: of the queries and of the keys.
        causal: whether a query sees only the keys up to itself.
    """
    if attend.is_plain:
        parts = _with_all_heads(projected, sizes, counts)
        if _has_flash(parts[0].device, parts[0].dtype, attend.widths, attend.rate):
            return _flash_attention(parts, packs, counts[0], causal)
        if all(pack.shape[1] <= LONG for pack in packs):
            by_rows: Tensor = _RowAttention.apply(  # type: ignore[no-untyped-call]
                packs, counts[0], causal, attend.rate, *parts
            )
            return by_rows
    of_queries, of_keys = packs
    queries, keys, values = (
        split_heads(pack.pad(part), count)
        for part, pack, count in zip(
            _apart(projected, sizes), (of_queries, of_keys, of_keys), counts, strict=True
        )
    )
    mask = None if causal else of_keys.mask[:, None, None]  # [B, 1, 1, S]; padding comes last
    mixed = attend.attention_fn(queries, keys, values, mask, causal, attend.rate)
    return of_queries.unpad(mixed.transpose(1, 2).flatten(2))


def _apart(projected: tuple[Tensor, ...], sizes: Sequence[int]) -> list[Tensor]:
    """Return queries, keys and values, which lie side by side; see :func:`mix_packs`."""
    *queries, rest = projected
    return [*queries, *rest.split_with_sizes(list(sizes[len(queries) :]), 1)]


def _with_all_heads(
    projected: tuple[Tensor, ...], sizes: Sequence[int], counts: Sequence[int]
) -> tuple[Tensor, ...]:
    """Return `projected` if sizes are equal; else queries, keys and values of as many heads each.

    Heads of keys and values are repeated for the queries of their group.
    """
    if len({*sizes}) == 1:
        return projected
    return tuple(
        part.view(len(part), count, -1).repeat_interleave(counts[0] // count, 1).flatten(1)
        for part, count in zip(_apart(projected, sizes), counts, strict=True)
    )


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


def is_compilable(model: nn.Module, device: torch.device) -> bool:
    """Return whether torch can compile all attention of a model on packs, in training.

    That is so if torch's fused kernels compute it, in the dtype of autocast.
    """
    if device.type == "cuda":
        try_own_kernels()  # cannot be done while torch compiles
    attends = [module for module in model.modules() if isinstance(module, Attend)]
    low = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if low else torch.float32
    return bool(attends) and all(
        attend.is_plain and _has_flash(device, dtype, attend.widths, attend.dropout)
        for attend in attends
    )


def _has_flash(
    device: torch.device, dtype: torch.dtype, widths: tuple[int, int], dropout: float
) -> bool:
    """Return whether torch 2.11 has a fused attention on packs: in half precision on a newer GPU.

    Args:
        device: of the queries.
        dtype: of the queries.
        widths: of a head of queries and keys, and of one of values.
        dropout: dropout rate on the attention weights.
    """
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and widths[0] == widths[1]
        and widths[0] % 8 == 0
        and widths[0] <= 256
        and dropout == 0.0
        # What is being compiled is compilable, and the compiler cannot ask the GPU.
        and (torch.compiler.is_compiling() or _is_newer_gpu(device))
    )


def _is_newer_gpu(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0) and _has_varlen_attn()


@cache
def _has_varlen_attn() -> bool:
    """Return whether this torch has attention on sequences of varying length, with windows.

    Imported only on a GPU: the import takes a second.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in signature(varlen_attn).parameters  # torch 2.10 has none


_works: bool | None = None
"""Whether Triton can compile and run kernels; None before the first try."""

TORCH_BLOCK = 128
"""Tokens of a block of torch's kernels, which belong to one sentence."""


def _has_own_kernels(parts: tuple[Tensor, ...], packs: tuple[Pack, Pack], width: int) -> bool:
    """Return whether :mod:`nmt.models.fused_attention` is better: heads fit, sentences are short.

    Args:
        parts: see :func:`_flash_attention`.
        packs: of the queries and of the keys.
        width: C, of a head.
    """
    sentences = len(packs[0].ends) - 1
    is_short = all(len(part) < TORCH_BLOCK * sentences for part in parts)
    fits = parts[0].is_cuda and is_short and width in (16, 32, 64)
    return fits and (torch.compiler.is_compiling() or try_own_kernels()) and _works is True


def try_own_kernels() -> bool:
    """Try once whether Triton can compile and run kernels on the current GPU; warn if not."""
    global _works
    if _works is None:
        try:
            from nmt.models.fused_attention import try_triton

            try_triton()
            _works = True
        except Exception as error:  # whatever Triton, its compiler and its driver raise
            _works = False
            reason = str(error).strip().partition("\n")[0]
            warn(
                "attention takes slower kernels, because Triton, which needs a C compiler and "
                f"Python's headers, does not work here: {one_line(reason)}"
            )
    return _works


def _flash_attention(
    parts: tuple[Tensor, ...], packs: tuple[Pack, Pack], heads: int, causal: bool
) -> Tensor:
    """Return the mixed values [P, H * C] by kernels that store no scores."""
    of_queries, of_keys = packs
    width = sum(part.shape[1] for part in parts) // (3 * heads)
    if _has_own_kernels(parts, packs, width):
        from nmt.models.fused_attention import attend_to_packs

        fused: Tensor = attend_to_packs(
            [part.contiguous() for part in parts],
            [pack.sentence_of_tokens for pack in packs],
            [pack.ends for pack in packs],
            heads,
            causal,
        )[0]
        return fused
    from torch.nn.attention.varlen import varlen_attn

    queries, keys, values = (
        vectors for part in parts for vectors in part.view(len(part), -1, heads, width).unbind(1)
    )
    mixed = varlen_attn(
        queries,
        keys,
        values,
        of_queries.ends,
        of_keys.ends,
        of_queries.longest,
        of_keys.longest,
        window_size=(-1, 0) if causal else (-1, -1),
    )
    assert isinstance(mixed, Tensor)  # no logarithms of sums are asked for
    return mixed.flatten(1)


_SIDE_BY_SIDE = {1: (3,), 2: (1, 2), 3: (1, 1, 1)}
"""How many of queries, keys and values lie side by side in each of so many tensors."""


class _RowAttention(torch.autograd.Function):
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

"""Multi-head attention on packs: the tokens of a batch one after another, without padding.

The results are those of :mod:`nmt.models.attention` for padded sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmt.data.packing import Pack
from nmt.models.attention import LONG, Attend, split_heads
from nmt.models.flash_attention import has_flash, mix_by_flash
from nmt.models.row_attention import RowAttention
from nmt.runtime.own_kernels import has_own_kernels


def mix_packs(
    attend: Attend, projected: Sequence[Tensor], packs: tuple[Pack, Pack], causal: bool = False
) -> Tensor:
    """Return the values [P, H * C'], mixed by their weights.

    Args:
        attend: the attention after its projections.
        projected: queries, keys and values side by side, [P, the sum of ``attend.sizes``]; or
            queries [P, the first size], and keys and values side by side [P', the others].
        packs: of the queries and of the keys.
        causal: whether a query sees only the keys up to itself.
    """
    if attend.is_plain:
        parts = _with_all_heads(attend, projected)
        if has_flash(parts[0].device, parts[0].dtype, attend.widths, attend.rate):
            return mix_by_flash(parts, packs, attend.counts[0], causal)
        if all(pack.shape[1] <= LONG for pack in packs):
            by_rows: Tensor = RowAttention.apply(  # type: ignore[no-untyped-call]
                packs, attend.counts[0], causal, attend.rate, *parts
            )
            return by_rows
    of_queries, of_keys = packs
    queries, keys, values = (
        split_heads(pack.pad(part), count)
        for part, pack, count in zip(
            _apart(attend, projected), (of_queries, of_keys, of_keys), attend.counts, strict=True
        )
    )
    mask = None if causal else of_keys.mask[:, None, None]  # [B, 1, 1, S]; padding comes last
    return of_queries.unpad(attend.mix(queries, keys, values, mask, causal))


def _apart(attend: Attend, projected: Sequence[Tensor]) -> list[Tensor]:
    """Return queries, keys and values, which lie side by side; see :func:`mix_packs`."""
    *queries, rest = projected
    return [*queries, *rest.split_with_sizes(attend.sizes[len(queries) :], 1)]


def _with_all_heads(attend: Attend, projected: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return `projected` if sizes are equal; else queries, keys and values of as many heads each.

    Heads of keys and values are repeated for the queries of their group.
    """
    if len({*attend.sizes}) == 1:
        return tuple(projected)
    heads = attend.counts[0]
    return tuple(
        part.view(len(part), count, -1).repeat_interleave(heads // count, 1).flatten(1)
        for part, count in zip(_apart(attend, projected), attend.counts, strict=True)
    )


def is_compilable(model: nn.Module, device: torch.device) -> bool:
    """Return whether torch can compile all attention of a model on packs, in training.

    That is so if torch's fused kernels compute it, in the dtype of autocast.
    """
    if device.type == "cuda":
        has_own_kernels()  # the first call cannot be compiled
    attends = [module for module in model.modules() if isinstance(module, Attend)]
    low = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if low else torch.float32
    return bool(attends) and all(
        attend.is_plain and has_flash(device, dtype, attend.widths, attend.dropout)
        for attend in attends
    )

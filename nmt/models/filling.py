"""Packs of few shapes: one more sentence of padding makes the number of tokens round."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.packing import Packing


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

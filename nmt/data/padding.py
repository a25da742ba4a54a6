"""Token ids of several sentences as one tensor, padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.lazy import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


def target_input(target: Tensor) -> Tensor:
    """Return the decoder input for padded targets [B, T]: BOS, then all but the last token."""
    # Figure 1: "outputs (shifted right)".
    before = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), dim=1)
    return before.masked_fill(before == EOS, PAD)  # nothing is predicted after EOS


def as_rows(rows: Sequence[Sequence[float]], filling: float = PAD) -> Tensor:
    """Return the rows as one tensor [rows, length of the longest row, at least 1].

    Args:
        rows: lists of numbers, padded on the right.
        filling: padding value, PAD for token ids; its type sets the dtype of the tensor.
    """
    width = max([1, *map(len, rows)])
    full = [[*row, *[filling] * (width - len(row))] for row in rows]
    return torch.tensor(full, dtype=torch.tensor(filling).dtype).view(len(rows), width)


def as_array(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return rows of token ids as one array [rows, length of the longest row, at least 1]."""
    table: NDArray[np.int64] = as_rows(rows).numpy()
    return table


def as_groups(groups: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return groups of rows of token ids as one padded tensor [groups, rows, length].

    The dimensions are the largest number of rows and the length of the longest row, at least 1.
    """
    count = max(map(len, groups))
    rows = [row for group in groups for row in [*group, *[()] * (count - len(group))]]
    return as_rows(rows).view(len(groups), count, -1)

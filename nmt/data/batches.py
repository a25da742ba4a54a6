"""Batches: sentence pairs as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.manifest import Side
from nmt.data.sampler import Indices
from nmt.data.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as tensors, padded on the right."""

    source: Tensor
    """[B, S] int64, each row ends with EOS."""
    target_input: Tensor
    """[B, T] int64, each row begins with BOS."""
    target_output: Tensor
    """[B, T] int64, the tokens to predict: each row ends with EOS."""
    target_positions: Tensor
    """[P] int64, the flat positions in `target_output` that are not padding."""

    def to(self, device: torch.device) -> Batch:
        """The batch on a device, copied without waiting where its memory is pinned."""
        if device.type == "cpu":
            return self
        tensors = (self.source, self.target_input, self.target_output, self.target_positions)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in tensors))

    def pin(self) -> Batch:
        """The batch in page-locked memory, from which a GPU copies in the background."""
        tensors = (self.source, self.target_input, self.target_output, self.target_positions)
        return Batch(*(tensor.pin_memory() for tensor in tensors))

    @property
    def num_positions(self) -> int:
        """Positions of both sides, padding included."""
        return self.source.numel() + self.target_output.numel()

    @property
    def num_tokens(self) -> int:
        """Tokens of both sides, padding not included."""
        return int((self.source != PAD).sum()) + len(self.target_positions)

    @property
    def num_sentences(self) -> int:
        """Pairs; none in an empty batch, which has a row."""
        return int((self.target_output[:, 0] != PAD).sum())


class Padded(Protocol):
    """Pairs of sentences by their numbers: a :class:`Split`, or one whose subwords are sampled."""

    def padded(self, side: Side, indices: Indices) -> NDArray[np.int64]:
        """The sentences at `indices` [B] as rows, filled with PAD on the right: [B, L]."""


def make_batch(split: Padded, indices: Indices) -> Batch:
    """The batch of these sentences; of none, a batch whose loss is zero.

    A process that has no sentences left in an update still takes part in its collective
    operations, with such an empty batch.
    """
    if len(indices) == 0:
        return batch_of(torch.tensor([[EOS]]), torch.tensor([[PAD]]))
    source = torch.from_numpy(split.padded("source", indices))
    return batch_of(source, torch.from_numpy(split.padded("target", indices)))


def batch_of(source: Tensor, target: Tensor) -> Batch:
    """The batch of padded sources [B, S] and targets [B, T], both int64."""
    target_positions = (target != PAD).flatten().nonzero()[:, 0]
    return Batch(source, target_input(target), target, target_positions)


def target_input(target: Tensor) -> Tensor:
    """What a model is given to predict padded targets: BOS, then all but the last; [B, T] both."""
    before = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), dim=1)
    return before.masked_fill(before == EOS, PAD)  # after the last token nothing is predicted


def as_rows(rows: Sequence[Sequence[float]], filling: float = PAD) -> Tensor:
    """The rows as one tensor [rows, the longest row or 1], filled up on the right.

    Token ids are filled up with PAD; the filling of other numbers is of their own type.
    """
    width = max([1, *map(len, rows)])
    full = [[*row, *[filling] * (width - len(row))] for row in rows]
    return torch.tensor(full, dtype=torch.tensor(filling).dtype).view(len(rows), width)


def as_groups(groups: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Groups of rows of token ids as one tensor [groups, the most rows, the longest row or 1]."""
    count = max(map(len, groups))
    rows = [row for group in groups for row in [*group, *[()] * (count - len(group))]]
    return as_rows(rows).view(len(groups), count, -1)

"""Some pairs of a split, as a split: those of one direction of a multilingual dataset."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from nmt.data.dataset import Split
from nmt.data.manifest import Ids, Lengths, Side


class Subset:
    """The pairs of a split at given indices [n]."""

    def __init__(self, split: Split, indices: Ids) -> None:
        self.split, self.indices = split, indices

    @classmethod
    def of_direction(cls, split: Split, number: int) -> Subset:
        """Return the pairs of a direction, given by its number among those of the dataset."""
        assert split.directions is not None
        return cls(split, np.flatnonzero(split.directions == number))

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def source_lengths(self) -> Lengths:
        """Number of tokens of every source sentence, EOS included."""
        return self.split.source_lengths[self.indices]

    @cached_property
    def target_lengths(self) -> Lengths:
        """Number of tokens of every target sentence, EOS included."""
        return self.split.target_lengths[self.indices]

    def padded(self, side: Side, indices: Ids) -> npt.NDArray[np.int64]:
        """Return the sentences at `indices` [B] of the subset as rows, padded with PAD."""
        return self.split.padded(side, self.indices[indices])

    def source_text(self) -> list[str]:
        """Return the original source lines of a held-out split."""
        lines = self.split.source_text()
        return [lines[index] for index in self.indices]

    def reference_text(self) -> list[str]:
        """Return the original target lines of a held-out split."""
        lines = self.split.reference_text()
        return [lines[index] for index in self.indices]

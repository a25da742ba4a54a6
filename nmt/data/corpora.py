"""The named corpora of a dataset: which training pairs come from which entry of the recipe.

The pairs of a corpus follow each other in a dataset, so the number of pairs of each is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmt.data.manifest import Ids
from nmt.io.documents import DocumentFormat

CORPORA_FILE = "train.corpora.json"
"""Name of the file in a dataset; one whose corpora have no names has none."""


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """Content of ``train.corpora.json``."""

    names: tuple[str | None, ...]
    """Name of each entry of `preprocess.train`, in order; None for an entry without a name."""
    pairs: tuple[int, ...]
    """Number of pairs of each entry in this dataset or shard."""

    def __post_init__(self) -> None:
        if len(self.names) != len(self.pairs) or min(self.pairs, default=-1) < 0:
            raise ValueError("pairs must be a number for each of names")


CORPORA = DocumentFormat(
    kind=Corpora,
    name="nmt-corpora",
    version=1,
    remedy="make the dataset again with `nmt preprocess`",
)


def indices_of(parts: Sequence[Corpora]) -> dict[str, Ids]:
    """Return the indices of the pairs of each named corpus, over the shards of a dataset."""
    ranges: dict[str, list[Ids]] = {}
    start, total = 0, sum(sum(corpora.pairs) for corpora in parts)
    dtype = np.int32 if total < 2**31 else np.int64
    for corpora in parts:
        for name, pairs in zip(corpora.names, corpora.pairs, strict=True):
            if name is not None:
                ranges.setdefault(name, []).append(np.arange(start, start + pairs, dtype=dtype))
            start += pairs
    return {name: np.concatenate(indices) for name, indices in ranges.items()}

"""Statistics of the sentences of a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmt.data.dataset import Dataset
from nmt.data.manifest import Side

SAMPLE = 100_000
"""Number of sentences, evenly spread over the split, from which quantiles are computed."""

BLOCK = 4096
"""Number of sentences read at once."""


@dataclass(frozen=True)
class LengthStatistics:
    """Lengths of the sentences of one side of a split in tokens, EOS included."""

    mean: float
    median: int
    most: int
    """At least as long as 90 % of the sentences."""
    nearly_all: int
    """At least as long as 99 % of the sentences."""
    greatest: int

    def __str__(self) -> str:
        return (
            f"mean {self.mean:.1f}, median {self.median}, 90% {self.most}, "
            f"99% {self.nearly_all}, greatest {self.greatest}"
        )


def length_statistics(dataset: Dataset, split: str, side: Side) -> LengthStatistics | None:
    """Return the lengths of the sentences of a split; None if there is no sentence."""
    counts = dataset.manifest.splits[split]
    if not counts.pairs:
        return None
    tokens = counts.source_tokens if side == "source" else counts.target_tokens
    lengths = dataset.split(split).sampled_lengths(side, SAMPLE)
    median, most, nearly_all = np.quantile(lengths, [0.5, 0.9, 0.99], method="inverted_cdf")
    return LengthStatistics(
        mean=tokens / counts.pairs,
        median=int(median),
        most=int(most),
        nearly_all=int(nearly_all),
        greatest=int(lengths.max()),
    )


def tokens_in_use(dataset: Dataset, side: Side) -> int:
    """Return how many tokens of the vocabulary occur in a sample of the training sentences."""
    split = dataset.split("train")
    occurs = np.zeros(dataset.manifest.vocabulary(side), dtype=bool)
    sample = np.arange(0, len(split), max(1, -(-len(split) // SAMPLE)))
    for start in range(0, len(sample), BLOCK):
        occurs[split.padded(side, sample[start : start + BLOCK])] = True
    occurs[0] = False  # padding
    return int(occurs.sum())

"""Sampling of the directions of a multilingual dataset by a temperature.

Of D_l pairs in direction l, an epoch draws in proportion to D_l^(1/T): as they are with T = 1, and
equally many of each direction for a large T (Arivazhagan et al. 2019, *Massively Multilingual
Neural Machine Translation in the Wild*, section 4.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nmt.data.sampler import Indices, RandomSampler


class DirectionSampler(RandomSampler):
    """Updates of random sentences whose directions are sampled by a temperature.

    An epoch draws as many pairs as the dataset has. In one epoch, the pairs of a direction are
    drawn equally often, or some of them once more; these are chosen at random.
    """

    def __init__(
        self,
        source_lengths: NDArray[np.integer],
        target_lengths: NDArray[np.integer],
        tokens_per_update: int,
        seed: int,
        directions: NDArray[np.integer],
        temperature: float,
    ) -> None:
        """Prepare the epochs.

        Args:
            source_lengths: [n], tokens of each source with EOS.
            target_lengths: [n], tokens of each target with EOS.
            tokens_per_update: target tokens of one update, without padding, on average.
            seed: changes only the order and the choice.
            directions: [n], number of the direction of each pair.
            temperature: more than 0.
        """
        present = np.unique(directions)
        self._groups = [np.flatnonzero(directions == number) for number in present]
        sizes = np.array([len(group) for group in self._groups])
        shares = (sizes / sizes.max()) ** (1 / temperature)
        ends = np.rint(np.cumsum(shares) / shares.sum() * sizes.sum()).astype(np.int64)
        self.draws = np.diff(ends, prepend=0)
        """Pairs of each direction in an epoch, in the order of the numbers."""
        super().__init__(source_lengths, target_lengths, tokens_per_update, seed)

    def _total(self) -> float:
        means = [self.target_lengths[group].mean() for group in self._groups]
        return float(self.draws @ means)

    def _shuffled(self, random: np.random.Generator) -> Indices:
        """Return the sentences of an epoch in random order."""
        parts: list[Indices] = []
        for group, draws in zip(self._groups, self.draws, strict=True):
            whole, rest = divmod(int(draws), len(group))
            parts += [np.repeat(group, whole), random.choice(group, rest, replace=False)]
        return random.permutation(np.concatenate(parts))

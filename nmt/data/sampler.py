"""Sampling of batches: the sentences of each update, and their split into micro-batches.

The order of an epoch is a pure function of (lengths, tokens per update, seed, epoch). The sampler
sorts sentences by length, cuts them into *buckets* of similar length and shuffles the buckets.
Consecutive buckets form an update. Only then are an update's buckets cut into micro-batches that
fit a device, and distributed over the processes: an update holds the same sentences on any machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nmt.data.dataset import Split

Indices = NDArray[np.integer]

BUCKET_TOKENS = 3600
"""Target tokens of a bucket; a larger update consists of several buckets.

The value is a little under 4096, so that a padded bucket still fits the usual micro-batch.
"""

_LONGEST = np.iinfo(np.int16).max
"""Longer sentences are sorted as if they had this length: numpy sorts 16 bits in linear time."""


class BatchSampler:
    """The updates of every epoch, addressed by the number of the update."""

    def __init__(
        self,
        source_lengths: NDArray[np.integer],
        target_lengths: NDArray[np.integer],
        tokens_per_update: int,
        seed: int,
    ) -> None:
        """Compute the cuts between buckets, which all epochs share.

        Args:
            source_lengths: [n], tokens of each source with EOS.
            target_lengths: [n], tokens of each target with EOS.
            tokens_per_update: target tokens of one update, without padding, on average.
            seed: changes only the order.
        """
        self.source_lengths = np.asarray(source_lengths)
        self.target_lengths = np.asarray(target_lengths)
        self.longer_lengths = np.maximum(self.source_lengths, self.target_lengths)
        self.seed = seed
        self.buckets_per_update = max(1, round(tokens_per_update / BUCKET_TOKENS))
        bucket_tokens = tokens_per_update / self.buckets_per_update
        # Sentences are sorted by target length first, so the cuts are the same in every epoch.
        tokens_so_far = np.cumsum(np.sort(self.target_lengths), dtype=np.int64)
        bucket = ((tokens_so_far - 1) / bucket_tokens).astype(np.int64)
        self.cuts = np.flatnonzero(np.diff(bucket)) + 1
        self._epoch: tuple[int, list[Indices]] | None = None

    @property
    def updates_per_epoch(self) -> int:
        """Number of updates of an epoch; the last update may be smaller."""
        return -(-(len(self.cuts) + 1) // self.buckets_per_update)

    def epoch_of(self, update: int) -> int:
        """Return the epoch (from 1) of an update (from 1)."""
        return (update - 1) // self.updates_per_epoch + 1

    def update(self, update: int) -> list[Indices]:
        """Return the buckets of an update (from 1): sentence indices, each sorted by length."""
        buckets = self.epoch(self.epoch_of(update))
        first = (update - 1) % self.updates_per_epoch * self.buckets_per_update
        return buckets[first : first + self.buckets_per_update]

    def epoch(self, epoch: int) -> list[Indices]:
        """Return all buckets of an epoch (from 1), in training order."""
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            count = len(self.target_lengths)
            kind = np.int32 if count < 2**31 else np.int64
            shuffled = random.permutation(np.arange(count, dtype=kind))
            target, source = (
                np.minimum(lengths, _LONGEST).astype(np.int16)[shuffled]
                for lengths in (self.target_lengths, self.source_lengths)
            )
            # Sort sources up and down in turn: a bucket of two target lengths has similar sources.
            source[target % 2 == 1] *= -1
            buckets = np.split(shuffled[np.lexsort((source, target))], self.cuts)
            self._epoch = (epoch, [buckets[i] for i in random.permutation(len(buckets))])
        return self._epoch[1]


def micro_batches(
    buckets: list[Indices], lengths: NDArray[np.integer], max_tokens: int, processes: int = 1
) -> list[list[Indices]]:
    """Distribute an update's sentences: every process gets the same number of micro-batches.

    Args:
        buckets: the sentences of the update, sorted by length within each bucket.
        lengths: length of the longer side of each pair, for all sentences.
        max_tokens: largest number of positions of one side of a micro-batch, padding included; a
            longer sentence becomes a micro-batch by itself.
        processes: number of processes that share the update.

    Returns:
        The micro-batches of each process, as arrays of sentence indices.
    """
    parts = [part for bucket in buckets for part in _fit(bucket, lengths, max_tokens)]
    while len(parts) % processes:
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        whole = parts[largest]
        parts[largest : largest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    parts.sort(key=lambda part: -len(part) * int(lengths[part].max(initial=0)))
    return [parts[rank::processes] for rank in range(processes)]


def _fit(bucket: Indices, lengths: NDArray[np.integer], max_tokens: int) -> list[Indices]:
    """Halve the bucket until each part has at most `max_tokens` positions."""
    if len(bucket) <= 1 or len(bucket) * int(lengths[bucket].max()) <= max_tokens:
        return [bucket]
    middle = len(bucket) // 2
    return [
        *_fit(bucket[:middle], lengths, max_tokens),
        *_fit(bucket[middle:], lengths, max_tokens),
    ]


def in_length_order(split: Split, max_tokens: int) -> list[Indices]:
    """Return batches of similar length, at most `max_tokens` positions, of all sentences."""
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.argsort(longer, kind="stable")
    return _fit(order, longer, max_tokens)

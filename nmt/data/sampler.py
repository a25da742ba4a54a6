"""Which sentences are trained on in which update, and the tensors made of them.

The order of an epoch is a pure function of (lengths, tokens per update, seed, epoch): sentences
are sorted by length, cut into *buckets* of similar length, the buckets are shuffled, and a run of
them makes an update. Devices come after that: an update's buckets are cut into micro-batches that
fit a device and dealt out to the processes, so an update holds the same sentences on any machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nmt.data.dataset import Split

Indices = NDArray[np.integer]

BUCKET_TOKENS = 3600
"""Target tokens of similar length that stay together; an update of more is several buckets.

A little under 4096, so that with its padding a bucket still fits the usual micro-batch.
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
        """Computes what all epochs share.

        Args:
            source_lengths: [n], tokens of each source with EOS.
            target_lengths: [n], tokens of each target with EOS.
            tokens_per_update: target tokens of one update, without padding; met on average.
            seed: changes the order, and nothing else.
        """
        self.source_lengths = np.asarray(source_lengths)
        self.target_lengths = np.asarray(target_lengths)
        self.longer_lengths = np.maximum(self.source_lengths, self.target_lengths)
        self.seed = seed
        self.buckets_per_update = max(1, round(tokens_per_update / BUCKET_TOKENS))
        bucket_tokens = tokens_per_update / self.buckets_per_update
        # Sorted by target length first, so the places to cut are the same in every epoch.
        tokens_so_far = np.cumsum(np.sort(self.target_lengths), dtype=np.int64)
        bucket = ((tokens_so_far - 1) / bucket_tokens).astype(np.int64)
        self.cuts = np.flatnonzero(np.diff(bucket)) + 1
        self._epoch: tuple[int, list[Indices]] | None = None

    @property
    def updates_per_epoch(self) -> int:
        """Updates in which each sentence is seen once; the last one may be smaller."""
        return -(-(len(self.cuts) + 1) // self.buckets_per_update)

    def epoch_of(self, update: int) -> int:
        """The epoch, from 1, that an update, from 1, belongs to."""
        return (update - 1) // self.updates_per_epoch + 1

    def update(self, update: int) -> list[Indices]:
        """The buckets of an update (from 1): arrays of sentence indices, each sorted by length."""
        buckets = self.epoch(self.epoch_of(update))
        first = (update - 1) % self.updates_per_epoch * self.buckets_per_update
        return buckets[first : first + self.buckets_per_update]

    def epoch(self, epoch: int) -> list[Indices]:
        """All buckets of an epoch (from 1), in the order in which they are trained on."""
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            count = len(self.target_lengths)
            kind = np.int32 if count < 2**31 else np.int64
            shuffled = random.permutation(np.arange(count, dtype=kind))
            target, source = (
                np.minimum(lengths, _LONGEST).astype(np.int16)[shuffled]
                for lengths in (self.target_lengths, self.source_lengths)
            )
            # Up and down by turns, so that a bucket over two target lengths has like sources.
            source[target % 2 == 1] *= -1
            buckets = np.split(shuffled[np.lexsort((source, target))], self.cuts)
            self._epoch = (epoch, [buckets[i] for i in random.permutation(len(buckets))])
        return self._epoch[1]


def micro_batches(
    buckets: list[Indices], lengths: NDArray[np.integer], max_tokens: int, processes: int = 1
) -> list[list[Indices]]:
    """An update's sentences, dealt out: for each process, as many micro-batches as for the others.

    Args:
        buckets: the sentences of the update, sorted by length within each bucket.
        lengths: of all sentences, the longer side of each pair.
        max_tokens: the most positions of one side of a micro-batch, padding included; only a
            single sentence that is longer by itself exceeds it.
        processes: how many share the update.
    """
    parts = [part for bucket in buckets for part in _fit(bucket, lengths, max_tokens)]
    while len(parts) % processes:
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        whole = parts[largest]
        parts[largest : largest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    parts.sort(key=lambda part: -len(part) * int(lengths[part].max(initial=0)))
    return [parts[rank::processes] for rank in range(processes)]


def _fit(bucket: Indices, lengths: NDArray[np.integer], max_tokens: int) -> list[Indices]:
    """The bucket, halved until each part has at most `max_tokens` positions."""
    if len(bucket) <= 1 or len(bucket) * int(lengths[bucket].max()) <= max_tokens:
        return [bucket]
    middle = len(bucket) // 2
    return [
        *_fit(bucket[:middle], lengths, max_tokens),
        *_fit(bucket[middle:], lengths, max_tokens),
    ]


def in_length_order(split: Split, max_tokens: int) -> list[Indices]:
    """Every sentence once, in batches of similar length and at most `max_tokens` positions."""
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.argsort(longer, kind="stable")
    return _fit(order, longer, max_tokens)

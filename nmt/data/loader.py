"""Load the batches of each update, ahead of training."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.batches import Batch, Link, PaddedSplit, make_batch
from nmt.data.dataset import Split
from nmt.data.sampler import BatchSampler, micro_batches, packed_micro_batches

T = TypeVar("T")


@dataclass(frozen=True)
class Update:
    """The share of one process in one update."""

    number: int
    epoch: int
    batches: list[Batch]
    num_positions: int
    """Positions of both sides in the batches, with padding if the model needs any."""
    target_tokens: int
    """Stored target tokens of the whole update, over all processes: the divisor of the loss."""


@dataclass(frozen=True, kw_only=True)
class BatchLoader:
    """Loader of the batches of one process."""

    split: Split
    sampler: BatchSampler
    max_tokens: int
    """Largest number of tokens of one side of a micro-batch, padding included. If sentences change
    between epochs, the limit is approximate."""
    packs: bool = False
    """Whether the model computes on tokens alone, so that micro-batches need no padding."""
    rows_per_sentence: int = 1
    """Number of rows that each sentence takes in a micro-batch."""
    process: int = 0
    num_processes: int = 1
    pinned: bool = False
    """Whether batches are in page-locked memory."""
    in_epoch: Callable[[int], PaddedSplit] | None = None
    """Returns the sentences of an epoch, if they change between epochs. Updates and the divisor of
    the loss still use the lengths of `split`."""
    growth: float = 1.0
    """Number of tokens in an epoch for each token of `split`, if sentences change."""
    link: Link | None = None
    """Returns the word alignments of a batch, if training reads any."""
    weights: NDArray[np.float32] | None = None
    """Weight of each pair in the loss, [n]. The divisor of the loss counts tokens without them."""

    def updates(self, first: int) -> Iterator[Update]:
        """Yield the updates from number `first` on, without end."""
        return map(self.update, itertools.count(first))

    def update(self, number: int) -> Update:
        """Return one update, by its number from 1."""
        target = self.sampler.target_lengths
        groups = self.sampler.update(number)
        divide = packed_micro_batches if self.packs else micro_batches
        # Passes, samples and longer segmentations take their part of the memory.
        max_tokens = max(1, int(self.max_tokens / (self.rows_per_sentence * self.growth)))
        parts = divide(groups, self.sampler, max_tokens, self.num_processes)[self.process]
        epoch = self.sampler.epoch_of(number)
        split = self.in_epoch(epoch) if self.in_epoch else self.split
        batches = [make_batch(split, indices, self.link, self.weights) for indices in parts]
        counts = (batch.num_tokens if self.packs else batch.num_positions for batch in batches)
        return Update(
            number=number,
            epoch=epoch,
            batches=[batch.pin() for batch in batches] if self.pinned else batches,
            num_positions=sum(counts),
            # Of stored lengths over all processes: the divisor must not depend on who computes
            # what.
            target_tokens=sum(int(target[group].sum()) for group in groups),
        )


AHEAD = 2
"""Number of items that wait in :func:`prefetch`."""


def prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items, computed ahead by a thread until `AHEAD` of them wait."""
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(entry: tuple[bool, T | BaseException | None]) -> bool:
        """Wait until the queue has room; return False if the consumer stopped first."""
        while not stopped.is_set():
            try:
                # Without a timeout, the thread would never notice a consumer that has stopped.
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        """Put every item, then the end or the exception."""
        try:
            for item in items:
                if not put((True, item)):
                    return
        except BaseException as error:  # the consumer raises it
            put((False, error))
        else:
            put((False, None))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = ready.get()
            if is_item:
                yield value  # type: ignore[misc]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        stopped.set()
        thread.join()  # a thread inside torch at interpreter exit aborts the process

"""Which sentences are trained on in which update, and the tensors made of them.

The order of an epoch is a pure function of (lengths, tokens per update, seed, epoch): sentences
are sorted by length, cut into *buckets* of similar length, the buckets are shuffled, and a run of
them makes an update. Devices come after that: an update's buckets are cut into micro-batches that
fit a device and dealt out to the processes, so an update holds the same sentences on any machine.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.dataset import Split
from nmt.data.format import BOS, EOS, PAD, Side

T = TypeVar("T")
Indices = NDArray[np.integer]

BUCKET_TOKENS = 3600
"""Target tokens of similar length that stay together; an update of more is several buckets.

A little under 4096, so that with its padding a bucket still fits the usual micro-batch.
"""


_LONGEST = np.iinfo(np.int16).max
"""Longer sentences are sorted as if they had this length: numpy sorts 16 bits in linear time."""


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as tensors, padded on the right."""

    source: Tensor
    """[B, S] int64, each row ends with EOS."""
    target_input: Tensor
    """[B, T] int64, each row begins with BOS."""
    target_output: Tensor
    """[B, T] int64, the tokens to predict: each row ends with EOS."""
    predicted: Tensor
    """[P] int64, the flat positions in `target_output` that are not padding."""

    def to(self, device: torch.device) -> Batch:
        """The batch on a device, copied without waiting where its memory is pinned."""
        if device.type == "cpu":
            return self
        tensors = (self.source, self.target_input, self.target_output, self.predicted)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in tensors))

    def pin(self) -> Batch:
        """The batch in page-locked memory, from which a GPU copies in the background."""
        tensors = (self.source, self.target_input, self.target_output, self.predicted)
        return Batch(*(tensor.pin_memory() for tensor in tensors))

    @property
    def num_positions(self) -> int:
        """Positions of both sides, padding included."""
        return self.source.numel() + self.target_output.numel()

    @property
    def num_tokens(self) -> int:
        """Tokens of both sides, padding not included."""
        return int((self.source != PAD).sum()) + len(self.predicted)

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
    predicted = (target != PAD).flatten().nonzero()[:, 0]
    return Batch(source, target_input(target), target, predicted)


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


class Order:
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


@dataclass(frozen=True)
class Update:
    """The share of one process in one update."""

    number: int
    epoch: int
    batches: list[Batch]
    target_tokens: int
    """Of the whole update, over all processes: what the loss is divided by."""


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What one process is fed with."""

    split: Split
    order: Order
    max_tokens: int
    """Positions of one side of a micro-batch."""
    rows: int = 1
    """Rows of a micro-batch that a sentence will become."""
    process: int = 0
    num_processes: int = 1
    pinned: bool = False
    """Whether batches are made in page-locked memory."""
    in_epoch: Callable[[int], Padded] | None = None
    """The sentences of the split in an epoch, where they are not the same in each; lengths, and so
    which of them are in a batch and what the loss is divided by, are those of `split`."""

    def updates(self, first: int) -> Iterator[Update]:
        """The updates from number `first` on, without end."""
        return map(self.update, itertools.count(first))

    def update(self, number: int) -> Update:
        """One update, by its number from 1."""
        target = self.order.target_lengths
        buckets = self.order.update(number)
        max_tokens = self.max_tokens // self.rows
        shares = micro_batches(buckets, self.order.longer_lengths, max_tokens, self.num_processes)
        own = shares[self.process]
        epoch = self.order.epoch_of(number)
        split = self.in_epoch(epoch) if self.in_epoch else self.split
        batches = [make_batch(split, indices) for indices in own]
        return Update(
            number=number,
            epoch=epoch,
            batches=[batch.pin() for batch in batches] if self.pinned else batches,
            target_tokens=sum(int(target[bucket].sum()) for bucket in buckets),
        )


def in_length_order(split: Split, max_tokens: int) -> list[Indices]:
    """Every sentence once, in batches of similar length and at most `max_tokens` positions."""
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.argsort(longer, kind="stable")
    return _fit(order, longer, max_tokens)


def prefetch(items: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """The items, made by a thread that works up to `depth` of them ahead."""
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[bool, T | BaseException | None]) -> bool:
        """Waits until there is room; whether there was before all was stopped."""
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        """Puts every item, and at last the end or what went wrong."""
        try:
            for item in items:
                if not put((True, item)):
                    return
        except BaseException as error:  # handed to the consumer, who raises it
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
        thread.join()  # a thread inside torch while the interpreter ends would abort the process

"""Sampling of batches: the sentences of each update, and their split into micro-batches.

The updates of an epoch are a pure function of (lengths, tokens per update, seed, epoch): an update
holds the same sentences on any machine. Only then are the sentences of an update distributed over
processes and cut into micro-batches that fit a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from nmt.data.dataset import Split, Subset

Indices = NDArray[np.integer]

BUCKET_TOKENS = 3600
"""Target tokens of a bucket; a larger update consists of several buckets.

The value is a little under 4096, so that a padded bucket still fits the usual micro-batch.
"""

LEAST_FILL = 0.6
"""Share of the positions of a micro-batch that hold a token, for models that need padding.

For recurrent models and attention that pads, dividing a batch of 1,024 tokens by this costs less
than computing the padding, and dividing further costs more.
"""

FEW_SENTENCES = 8
"""Micro-batches of fewer sentences are not divided for their padding."""

_LONGEST = np.iinfo(np.int16).max
"""Longer sentences are sorted as if they had this length: numpy sorts 16 bits in linear time."""


class BatchSampler(ABC):
    """The updates of every epoch, addressed by the number of the update."""

    def __init__(
        self,
        source_lengths: NDArray[np.integer],
        target_lengths: NDArray[np.integer],
        tokens_per_update: int,
        seed: int,
    ) -> None:
        """Prepare the epochs.

        Args:
            source_lengths: [n], tokens of each source with EOS.
            target_lengths: [n], tokens of each target with EOS.
            tokens_per_update: target tokens of one update, without padding, on average.
            seed: changes only the order.
        """
        self.source_lengths = np.asarray(source_lengths)
        self.target_lengths = np.asarray(target_lengths)
        self.longer_lengths = np.maximum(self.source_lengths, self.target_lengths)
        self.tokens_per_update = tokens_per_update
        self.seed = seed
        # One epoch is kept, because the loader asks for its updates in turn.
        self._epoch: tuple[int, list[Indices]] | None = None
        self.updates_per_epoch = self._prepare()

    updates_per_epoch: int
    """Number of updates of an epoch."""

    @abstractmethod
    def _prepare(self) -> int:
        """Compute what all epochs share, and return the number of updates of an epoch."""

    @abstractmethod
    def update(self, update: int) -> list[Indices]:
        """Return the sentences of an update (from 1), in groups that are sorted by length."""

    @abstractmethod
    def _divide(self, random: np.random.Generator, epoch: int) -> list[Indices]:
        """Return the sentences of an epoch in groups, in training order."""

    def epoch_of(self, update: int) -> int:
        """Return the epoch (from 1) of an update (from 1)."""
        return (update - 1) // self.updates_per_epoch + 1

    def first_of(self, epoch: int) -> int:
        """Return the first update of an epoch (from 1)."""
        return (epoch - 1) * self.updates_per_epoch + 1

    def epoch(self, epoch: int) -> list[Indices]:
        """Return all sentences of an epoch (from 1) in groups, in training order."""
        if self._epoch is None or self._epoch[0] != epoch:
            # Depends on seed and epoch alone: a resumed run asks for any update without replaying
            # earlier ones.
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._epoch = (epoch, self._divide(random, epoch))
        return self._epoch[1]

    def _shuffled(self, random: np.random.Generator) -> Indices:
        """Return all sentences in random order."""
        count = len(self.target_lengths)
        return random.permutation(np.arange(count, dtype=np.int32 if count < 2**31 else np.int64))


class RandomSampler(BatchSampler):
    """Updates of sentences drawn at random from the whole corpus, each once in an epoch."""

    def _prepare(self) -> int:
        count = round(self._total() / self.tokens_per_update)
        return min(max(1, count), max(1, len(self.target_lengths)))

    def _total(self) -> float:
        """Return the target tokens of an epoch, on average."""
        return int(self.target_lengths.sum(dtype=np.int64))

    def update(self, update: int) -> list[Indices]:
        """Return the sentences of an update (from 1), sorted by length."""
        epoch = self.epoch_of(update)
        sentences = self.epoch(epoch)[update - self.first_of(epoch)]
        lengths = self.source_lengths[sentences], self.target_lengths[sentences]
        # Sorted within the update alone, so that micro-batches have like lengths and updates stay
        # random.
        return [sentences[np.lexsort(lengths)]]

    def _divide(self, random: np.random.Generator, epoch: int) -> list[Indices]:
        """Cut the shuffled corpus into updates."""
        return self._cut(self._shuffled(random), self.updates_per_epoch)

    def _cut(self, shuffled: Indices, updates: int) -> list[Indices]:
        """Cut sentences into updates with nearly the same number of target tokens."""
        tokens_so_far = np.cumsum(self.target_lengths[shuffled], dtype=np.int64)
        update = np.arange(1, updates)
        total = int(tokens_so_far[-1])
        # Cut by tokens, not by sentences: gradients of all updates weigh alike.
        cuts = np.searchsorted(tokens_so_far, update * (total / updates))
        # An update has at least one sentence, however long its neighbours are.
        cuts = np.maximum.accumulate(np.maximum(cuts - update, 0)) + update
        # And the updates to come need a sentence each.
        return np.split(shuffled, np.minimum(cuts, len(shuffled) - updates + update))


class BucketSampler(BatchSampler):
    """Updates of sentences of similar length, which need little padding.

    The sampler sorts sentences by length, cuts them into *buckets* and shuffles the buckets.
    Consecutive buckets form an update; the last update of an epoch may be smaller.
    """

    def _prepare(self) -> int:
        self.buckets_per_update = max(1, round(self.tokens_per_update / BUCKET_TOKENS))
        bucket_tokens = self.tokens_per_update / self.buckets_per_update
        # Sentences are sorted by target length first, so the cuts are the same in every epoch.
        tokens_so_far = np.cumsum(np.sort(self.target_lengths), dtype=np.int64)
        # Minus 1, because a sentence belongs to the bucket of its last token.
        bucket = ((tokens_so_far - 1) / bucket_tokens).astype(np.int64)
        self.cuts = np.flatnonzero(np.diff(bucket)) + 1
        return -(-(len(self.cuts) + 1) // self.buckets_per_update)

    def update(self, update: int) -> list[Indices]:
        """Return the buckets of an update (from 1), each sorted by length."""
        buckets = self.epoch(self.epoch_of(update))
        first = (update - 1) % self.updates_per_epoch * self.buckets_per_update
        return buckets[first : first + self.buckets_per_update]

    def _divide(self, random: np.random.Generator, epoch: int) -> list[Indices]:
        """Cut the sorted corpus into buckets, and shuffle the buckets."""
        shuffled = self._shuffled(random)
        target, source = (
            np.minimum(lengths, _LONGEST).astype(np.int16)[shuffled]
            for lengths in (self.target_lengths, self.source_lengths)
        )
        # Sort sources up and down in turn: a bucket of two target lengths has similar sources.
        source[target % 2 == 1] *= -1
        buckets = np.split(shuffled[np.lexsort((source, target))], self.cuts)
        # As tensor2tensor and fairseq batch: sentences of a bucket stay together, buckets are
        # shuffled.
        return [buckets[i] for i in random.permutation(len(buckets))]


samplers: dict[str, type[BatchSampler]] = {"random": RandomSampler, "bucketed": BucketSampler}
"""Samplers by the value of ``train.batching``."""


def packed_micro_batches(
    groups: list[Indices],
    sampler: BatchSampler,
    max_tokens: int,
    processes: int = 1,
) -> list[list[Indices]]:
    """Distribute an update's sentences: every process gets micro-batches of nearly equal tokens.

    Args:
        groups: the sentences of the update.
        sampler: its lengths.
        max_tokens: largest number of tokens of one side of a micro-batch; a longer sentence becomes
            a micro-batch by itself.
        processes: number of processes that share the update.

    Returns:
        The micro-batches of each process, as arrays of sentence indices.
    """
    sentences = np.concatenate(groups)
    lengths = sampler.longer_lengths[sentences]
    sentences = sentences[np.argsort(-lengths, kind="stable")]  # rows of similar length
    alone = int((lengths > max_tokens).sum())  # the first sentences
    others = sentences[alone:]
    sides = sampler.source_lengths[others], sampler.target_lengths[others]
    tokens = np.stack(sides).astype(np.int64)
    # A sentence belongs to the part in which its middle token lies.
    middle = np.cumsum(tokens.sum(0)) - tokens.sum(0) / 2
    # The fewest parts that can hold the fuller side.
    count = -(-int(tokens.sum(1).max()) // max_tokens)
    while True:
        # Equally many for each process, which wait for one another in the last one.
        count += -(alone + count) % processes
        part = np.minimum(count * middle / tokens.sum(), count - 1).astype(np.int64)
        if count >= len(others):  # each by itself
            part = np.arange(len(others))
        sizes = [np.bincount(part, side, count).max(initial=0) for side in tokens]
        if max(sizes) <= max_tokens:
            break
        # Cutting by middles may overfill a part; then more parts are needed.
        count += 1
    part = np.concatenate((np.arange(alone), alone + part))
    parts = np.split(sentences, np.searchsorted(part, np.arange(1, alone + count)))
    return [parts[rank::processes] for rank in range(processes)]


def micro_batches(
    groups: list[Indices], sampler: BatchSampler, max_tokens: int, processes: int = 1
) -> list[list[Indices]]:
    """Distribute an update's sentences over processes, for a model that needs padding.

    Every process gets the same number of micro-batches.

    Args:
        groups: the sentences of the update, sorted by length within each group.
        sampler: its lengths.
        max_tokens: largest number of positions of one side of a micro-batch, padding included; a
            longer sentence becomes a micro-batch by itself.
        processes: number of processes that share the update.

    Returns:
        The micro-batches of each process, as arrays of sentence indices.
    """
    lengths = sampler.longer_lengths
    parts = [part for group in groups for part in _fit(group, lengths, max_tokens, LEAST_FILL)]
    while len(parts) % processes:
        # Halve the largest one until every process gets an equal number.
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        whole = parts[largest]
        parts[largest : largest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    # Similar sizes next to each other, so that processes finish together.
    parts.sort(key=lambda part: -len(part) * int(lengths[part].max(initial=0)))
    return [parts[rank::processes] for rank in range(processes)]


def _fit(
    group: Indices, lengths: NDArray[np.integer], max_tokens: int, fill: float = 0.0
) -> list[Indices]:
    """Halve sorted sentences until each part has at most `max_tokens` positions.

    Parts of enough sentences are halved also while less than the share `fill` of the positions
    holds a token.
    """
    count = len(group)
    positions = count * int(lengths[group].max(initial=0))
    # Below 60 % of tokens, padding costs more than another micro-batch.
    is_full = count < FEW_SENTENCES or lengths[group].sum() >= fill * positions
    if count <= 1 or (positions <= max_tokens and is_full):
        return [group]
    parts = (group[: count // 2], group[count // 2 :])
    return [small for part in parts for small in _fit(part, lengths, max_tokens, fill)]


def in_length_order(split: Split | Subset, max_tokens: int) -> list[Indices]:
    """Return batches of similar length, at most `max_tokens` positions, of all sentences.

    Pairs that are blank on both sides, such as blank lines between documents, are left out.
    """
    longer = np.maximum(split.source_lengths, split.target_lengths)
    order = np.argsort(longer, kind="stable")
    # A blank line has one token, EOS.
    return _fit(order[np.count_nonzero(longer == 1) :], longer, max_tokens)


class DirectionSampler(RandomSampler):
    """Updates of random sentences whose directions are sampled with a temperature T.

    A direction with D pairs gets a share of each epoch in proportion to D^(1/T): T = 1 keeps the
    proportions of the dataset, and a large T samples all directions equally often (Arivazhagan et
    al. 2019, *Massively Multilingual Neural Machine Translation in the Wild*, section 4.2).

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
        # A direction without training pairs must have no share.
        present = np.unique(directions)
        self._groups = [np.flatnonzero(directions == number) for number in present]
        sizes = np.array([len(group) for group in self._groups])
        # Relative to the largest, so that a small temperature gives no overflow.
        shares = (sizes / sizes.max()) ** (1 / temperature)
        # Rounded sums, so that the draws of all directions add up to an epoch.
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
            # The counts of any two pairs differ by at most one, so chance alone never leaves out a
            # pair.
            whole, rest = divmod(int(draws), len(group))
            parts += [np.repeat(group, whole), random.choice(group, rest, replace=False)]
        return random.permutation(np.concatenate(parts))

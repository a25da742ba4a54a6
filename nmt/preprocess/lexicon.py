"""Learn shortlists from training pairs: the likely target tokens of each source token.

IBM model 1 (Brown et al. 1993, *The Mathematics of Statistical Machine Translation*, section 4.1):
every target token is the translation of one source token, and a priori all tokens of the source
sentence are equally likely. Expectation maximisation finds t(target | source). The EOS of the
source sentence is the empty word (NULL), to which target tokens without a source token align.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from nmt.data.dataset import Dataset, Split
from nmt.data.manifest import Ids
from nmt.data.shortlist import Origin, Shortlist
from nmt.data.vocabulary import EOS, PAD

CELLS = 1 << 22
"""Size of the table of one :class:`Block` of target ids."""

LINKS = 1 << 21
"""Pairs of a target and a source token to weigh at once."""

LEAST = 1e-5
"""Pairs with a smaller expected count per occurrence of the source token are dropped. Such pairs
would not be among a few hundred candidates either."""

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class LexiconConfig:
    """Settings of a shortlist; the defaults are those of Marian's documentation."""

    first: int = 100
    """Number of most frequent target ids, which are candidates for every sentence."""

    best: int = 100
    """Number of likeliest target ids of each source id."""

    max_pairs: int = 500_000
    """Largest number of training pairs to read, evenly spread over all of them."""

    iterations: int = 5
    """Iterations of the expectation maximisation."""

    def __post_init__(self) -> None:
        for key in ("first", "best", "max_pairs", "iterations"):
            if (value := getattr(self, key)) < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")


def learn_shortlist(dataset: Dataset, subwords: str, config: LexiconConfig) -> Shortlist:
    """Learn the shortlist of a dataset; deterministic for the same data and settings.

    Args:
        dataset: its training pairs are read.
        subwords: fingerprint of the dataset's subwords.
        config: number of pairs to read and of candidates to keep.
    """
    pairs = Pairs.sample(dataset.split("train"), config.max_pairs)
    manifest = dataset.manifest
    sizes = manifest.source_vocabulary, manifest.target_vocabulary
    origin = Origin(
        subwords=subwords,
        data=manifest.fingerprint,
        target_vocabulary=sizes[1],
        shared_vocabulary=manifest.shared_vocabulary,
        pairs=len(pairs.lengths),
        iterations=config.iterations,
    )
    frequent = np.argsort(-np.bincount(pairs.targets, minlength=sizes[1]), kind="stable")
    frequent = frequent[frequent > EOS][: config.first]
    table = Lexicon.learn(pairs, sizes, config.iterations)
    return Shortlist(frequent.astype(np.int32), table.best(config.best), origin)


def measured(shortlist: Shortlist, split: Split) -> tuple[float, float]:
    """Return the mean length of a split's lists, and the share of target tokens on them."""
    listed = held = tokens = 0
    for first in range(0, len(split), 256):
        indices = np.arange(first, min(first + 256, len(split)))
        targets = split.padded("target", indices)
        chosen = shortlist.chosen(split.padded("source", indices))
        listed += np.count_nonzero(chosen)
        held += np.count_nonzero(np.take_along_axis(chosen, targets, 1) & (targets != PAD))
        tokens += np.count_nonzero(targets != PAD)
    return listed / max(1, len(split)), held / max(1, tokens)


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs, with the target tokens sorted by their ids."""

    sources: Ids
    """The source tokens of all pairs, end to end."""
    starts: Ids
    """Index in `sources` of the first source token of each pair."""
    lengths: Ids
    """Number of source tokens of each pair."""
    targets: Ids
    """The target tokens of all pairs, without EOS, in the order of their ids."""
    pair_of: Ids
    """Index of the pair of each target token."""

    @classmethod
    def of(cls, sources: list[Ids], targets: list[Ids]) -> Pairs:
        """Return the pairs of these sentences, each with its EOS."""
        lengths = np.fromiter(map(len, sources), np.int64, len(sources))
        flat = np.concatenate(targets).astype(np.int32)
        pair_of = np.repeat(np.arange(len(targets), dtype=np.int32), [len(ids) for ids in targets])
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] > EOS]
        starts = np.cumsum(lengths) - lengths
        return cls(np.concatenate(sources), starts, lengths, flat[order], pair_of[order])

    @classmethod
    def sample(cls, split: Split, most: int) -> Pairs:
        """Return at most `most` pairs, evenly spread over a split."""
        step = -(-len(split) // most)
        chosen = range(0, len(split), step)
        return cls.of([split.source(at) for at in chosen], [split.target(at) for at in chosen])

    def links(self, first: int, last: int) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Yield the target tokens with ids in [`first`, `last`), with their source sentences.

        Yields:
            A batch of target ids [n]; the number of source tokens of each one's sentence [n]; and
            these source ids, end to end [sum of the numbers].
        """
        # Bounds of another dtype would make numpy copy all targets.
        begin, end = np.searchsorted(self.targets, np.array((first, last), self.targets.dtype))
        ends = np.cumsum(self.lengths[self.pair_of[begin:end]])
        while begin < end:
            taken = max(1, int(np.searchsorted(ends, LINKS, "right")))
            pairs = self.pair_of[begin : begin + taken]
            lengths = self.lengths[pairs]
            shifts = self.starts[pairs] - (np.cumsum(lengths) - lengths)
            indices = np.repeat(shifts, lengths) + np.arange(lengths.sum())
            yield self.targets[begin : begin + taken], lengths, self.sources[indices]
            ends = ends[taken:] - ends[taken - 1]
            begin += taken


@dataclass(frozen=True)
class Lexicon:
    """The probabilities t(target | source) that are not near zero, unordered."""

    sources: Ids
    targets: Ids
    probabilities: Floats
    num_sources: int

    @classmethod
    def learn(cls, pairs: Pairs, sizes: tuple[int, int], iterations: int) -> Lexicon:
        """Run some iterations, starting with all translations equally likely.

        The expected counts of a target token depend on t of that target alone. So each block of
        targets is processed by itself, and only its counts that are not near zero are kept.
        """
        num_sources, num_targets = sizes
        height = max(1, CELLS // num_sources)
        blocks = [Block(first, first + height) for first in range(0, num_targets, height)]
        least = LEAST * np.bincount(pairs.sources, minlength=num_sources)
        totals: Floats | None = None  # None: all translations are equally likely
        for _ in tqdm(range(iterations), "shortlist", disable=None, leave=False):
            sums: Floats = np.zeros(num_sources)
            for block in blocks:
                sums += block.expect(pairs, totals, least)
            totals = sums
        assert totals is not None
        sources = np.concatenate([block.cells % num_sources for block in blocks])
        targets = np.concatenate([block.first + block.cells // num_sources for block in blocks])
        counts = np.concatenate([block.counts for block in blocks])
        return cls(sources, targets, counts / totals[sources], num_sources)

    def best(self, count: int) -> npt.NDArray[np.int32]:
        """Return the likeliest targets of each source [number of sources, count].

        Of equally likely targets the lower id comes first. EOS fills up rows with fewer targets.
        """
        order = np.lexsort((self.targets, -self.probabilities, self.sources))
        sources = self.sources[order]
        ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
        kept = ranks < count
        likeliest = np.full((self.num_sources, count), EOS, np.int32)
        likeliest[sources[kept], ranks[kept]] = self.targets[order][kept]
        return likeliest


class Block:
    """Expected counts of all source ids with a range of target ids, without those near zero."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.cells: Ids = np.empty(0, np.int32)  # (target - first) * number of sources + source
        self.counts: Floats = np.empty(0, np.float32)

    def expect(self, pairs: Pairs, totals: Floats | None, least: Floats) -> Floats:
        """Run one iteration, and return the sum of the new counts of each source id.

        Args:
            pairs: the sentence pairs.
            totals: sum of the old counts of each source id over all blocks; a count divided by its
                total is t. None: all translations are equally likely.
            least: counts up to this, for each source id, are dropped.
        """
        shape = self.last - self.first, len(least)
        table = np.full(shape, float(totals is None)).ravel()
        if totals is not None:
            table[self.cells] = self.counts / totals[self.cells % len(least)]
        counts = np.zeros_like(table)
        for targets, lengths, sources in pairs.links(self.first, self.last):
            row_starts = (targets.astype(np.int64) - self.first) * len(least)
            cells = np.repeat(row_starts, lengths) + sources
            weights = table[cells]
            norms = np.add.reduceat(weights, np.cumsum(lengths) - lengths)
            # A target token dropped with every token of its sentence has no share.
            shares = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
            np.add.at(counts, cells, weights * np.repeat(shares, lengths))
        self.cells = np.flatnonzero(counts.reshape(shape) > least).astype(np.int32)
        self.counts = counts[self.cells].astype(np.float32)
        sums = np.bincount(self.cells % len(least), self.counts, len(least))
        return sums.astype(np.float64)

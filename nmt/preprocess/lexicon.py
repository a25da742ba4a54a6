"""Shortlists learned from training pairs: which target tokens a source token is translated by.

IBM model 1 (Brown et al. 1993, *The Mathematics of Statistical Machine Translation*, section 4.1):
every target token is the translation of one token of its source, and each of these is as likely
before the tokens are seen. Expectation maximisation finds t(target | source). The end of the
source, which every sentence has, is the empty word that gives what nothing else does.
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
"""Of the table of a block of target ids, which are gone through together."""

LINKS = 1 << 21
"""Pairs of a target and a source token that are weighed at once."""

LEAST = 1e-5
"""Expected counts per occurrence of the source token below which a pair is given up; what is never
so likely is not among a few hundred candidates either."""

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class LexiconConfig:
    """What a shortlist is made of; the defaults are those that Marian's documentation shows."""

    first: int = 100
    """Most frequent target ids, which are candidates for every sentence."""

    best: int = 100
    """Likeliest target ids of each source id."""

    max_pairs: int = 500_000
    """The most training pairs to read, evenly spread over all of them."""

    iterations: int = 5
    """Of the expectation maximisation."""

    def __post_init__(self) -> None:
        for key in ("first", "best", "max_pairs", "iterations"):
            if (value := getattr(self, key)) < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")


def learn_shortlist(dataset: Dataset, subwords: str, config: LexiconConfig) -> Shortlist:
    """The shortlist of a dataset; the same for the same data and settings.

    Args:
        dataset: whose training pairs are read.
        subwords: the fingerprint of its subwords.
        config: how much is read, and how much is kept.
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
    """The mean length of the lists of a split, and the share of its target tokens on them."""
    listed = held = tokens = 0
    for first in range(0, len(split), 256):
        some = np.arange(first, min(first + 256, len(split)))
        targets = split.padded("target", some)
        chosen = shortlist.chosen(split.padded("source", some))
        listed += np.count_nonzero(chosen)
        held += np.count_nonzero(np.take_along_axis(chosen, targets, 1) & (targets != PAD))
        tokens += np.count_nonzero(targets != PAD)
    return listed / max(1, len(split)), held / max(1, tokens)


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs, of which every target token is looked up by its id."""

    sources: Ids
    """The source tokens of all pairs, end to end."""
    starts: Ids
    """Where each pair's begin."""
    lengths: Ids
    """How many each pair has."""
    targets: Ids
    """The target tokens of all pairs, without the ends, in the order of their ids."""
    pair_of: Ids
    """Which pair each of them is in."""

    @classmethod
    def of(cls, sources: list[Ids], targets: list[Ids]) -> Pairs:
        """The pairs of these sentences, each with its EOS."""
        lengths = np.fromiter(map(len, sources), np.int64, len(sources))
        flat = np.concatenate(targets).astype(np.int32)
        pair_of = np.repeat(np.arange(len(targets), dtype=np.int32), [len(it) for it in targets])
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] > EOS]
        starts = np.cumsum(lengths) - lengths
        return cls(np.concatenate(sources), starts, lengths, flat[order], pair_of[order])

    @classmethod
    def sample(cls, split: Split, most: int) -> Pairs:
        """At most that many pairs, evenly spread over a split."""
        step = -(-len(split) // most)
        chosen = range(0, len(split), step)
        return cls.of([split.source(at) for at in chosen], [split.target(at) for at in chosen])

    def links(self, first: int, last: int) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Every target token with ids from `first` to before `last`, and all it may stem from.

        Yields:
            A few at a time: the ids of the target tokens [n]; how many source tokens each one's
            sentence has [n]; and these [their sum].
        """
        # Bounds of another type would have all targets copied.
        begin, end = np.searchsorted(self.targets, np.array((first, last), self.targets.dtype))
        ends = np.cumsum(self.lengths[self.pair_of[begin:end]])
        while begin < end:
            taken = max(1, int(np.searchsorted(ends, LINKS, "right")))
            pairs = self.pair_of[begin : begin + taken]
            lengths = self.lengths[pairs]
            shifts = self.starts[pairs] - (np.cumsum(lengths) - lengths)
            places = np.repeat(shifts, lengths) + np.arange(lengths.sum())
            yield self.targets[begin : begin + taken], lengths, self.sources[places]
            ends = ends[taken:] - ends[taken - 1]
            begin += taken


@dataclass(frozen=True)
class Lexicon:
    """The probabilities t(target | source) that are not near zero, in no order."""

    sources: Ids
    targets: Ids
    probabilities: Floats
    num_sources: int

    @classmethod
    def learn(cls, pairs: Pairs, sizes: tuple[int, int], iterations: int) -> Lexicon:
        """The result of some iterations, begun with all translations equally likely.

        A target token's share of each source token depends on t of that target alone, so a block of
        targets is gone through at a time, and only what is not near zero is kept of it.
        """
        num_sources, num_targets = sizes
        height = max(1, CELLS // num_sources)
        blocks = [Block(first, first + height) for first in range(0, num_targets, height)]
        least = LEAST * np.bincount(pairs.sources, minlength=num_sources)
        totals: Floats | None = None  # None while all is equally likely
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
        """The likeliest targets of each source, of equals the lowest id; EOS where there are fewer.

        [number of sources, count].
        """
        order = np.lexsort((self.targets, -self.probabilities, self.sources))
        sources = self.sources[order]
        ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
        kept = ranks < count
        found = np.full((self.num_sources, count), EOS, np.int32)
        found[sources[kept], ranks[kept]] = self.targets[order][kept]
        return found


class Block:
    """The expected counts of all source ids with some target ids, those near zero left out."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.cells: Ids = np.empty(0, np.int32)  # (target - first) * number of sources + source
        self.counts: Floats = np.empty(0, np.float32)

    def expect(self, pairs: Pairs, totals: Floats | None, least: Floats) -> Floats:
        """One iteration; gives the sum of the new counts of each source id.

        Args:
            pairs: to go through.
            totals: of each source id over all blocks, by which the counts are probabilities; None
                where all are equally likely.
            least: of each source id, the counts to give up.
        """
        shape = self.last - self.first, len(least)
        table = np.full(shape, float(totals is None)).ravel()
        if totals is not None:
            table[self.cells] = self.counts / totals[self.cells % len(least)]
        counts = np.zeros_like(table)
        for targets, lengths, sources in pairs.links(self.first, self.last):
            rows = (targets.astype(np.int64) - self.first) * len(least)
            cells = np.repeat(rows, lengths) + sources
            weights = table[cells]
            whole = np.add.reduceat(weights, np.cumsum(lengths) - lengths)
            # What was given up with every token of its sentence counts for none.
            shares = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0)
            np.add.at(counts, cells, weights * np.repeat(shares, lengths))
        self.cells = np.flatnonzero(counts.reshape(shape) > least).astype(np.int32)
        self.counts = counts[self.cells].astype(np.float32)
        sums = np.bincount(self.cells % len(least), self.counts, len(least))
        return sums.astype(np.float64)

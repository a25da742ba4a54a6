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
"""Largest table of one :class:`CountBlock` of target ids, if it has several."""

LINKS = 1 << 21
"""Pairs of a target and a source token to weigh at once."""

MIN_SHARE = 1e-5
"""Pairs with a smaller expected count per occurrence of the source token are dropped. Such pairs
would not be among a few hundred candidates either."""

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class LexiconConfig:
    """Settings of a shortlist; the defaults come from Marian's documentation."""

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
        dataset: dataset whose training pairs are read.
        subwords: fingerprint of the dataset's subwords.
        config: number of pairs to read and of candidates to keep.
    """
    pairs = Pairs.sample(dataset.split("train"), config.max_pairs)
    manifest = dataset.manifest
    num_targets = manifest.target_vocabulary
    origin = Origin(
        subwords=subwords,
        data=manifest.fingerprint,
        target_vocabulary=num_targets,
        shared_vocabulary=manifest.shared_vocabulary,
        pairs=len(pairs.lengths),
        iterations=config.iterations,
    )
    # Stable, so that equal counts have one order on all machines.
    frequent = np.argsort(-np.bincount(pairs.targets, minlength=num_targets), kind="stable")
    frequent = frequent[frequent > EOS][: config.first]
    table = Lexicon.learn(pairs, manifest.source_vocabulary, config.iterations)
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
    def from_sentences(cls, sources: list[Ids], targets: list[Ids]) -> Pairs:
        """Return the pairs of these sentences, each with its EOS."""
        lengths = np.fromiter(map(len, sources), np.int64, len(sources))
        flat = np.concatenate(targets).astype(np.int32)
        pair_of = np.repeat(np.arange(len(targets), dtype=np.int32), [len(ids) for ids in targets])
        order = np.argsort(flat, kind="stable")
        # Special ids are no translations.
        order = order[flat[order] > EOS]
        starts = np.cumsum(lengths) - lengths
        return cls(np.concatenate(sources), starts, lengths, flat[order], pair_of[order])

    @classmethod
    def sample(cls, split: Split, most: int) -> Pairs:
        """Return at most `most` pairs, evenly spread over a split."""
        step = -(-len(split) // most)
        chosen = range(0, len(split), step)
        return cls.from_sentences(
            [split.source(at) for at in chosen], [split.target(at) for at in chosen]
        )

    def blocks(self, num_sources: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of target ids, [first, last), with at most `CELLS` cells each, or one id.

        The number of cells is the number of target ids times the number of source ids in their
        sentences. So rare words share a block: a large vocabulary has many rare words, which occur
        in few sentences.
        """
        ids, starts = np.unique(self.targets, return_index=True)
        source_counts = np.add.reduceat(self.lengths[self.pair_of], starts) if len(ids) else starts
        first = links = 0
        for target, more in zip(ids.tolist(), source_counts.tolist(), strict=True):
            links += more
            # A table of both vocabularies would take gigabytes; ranges of target ids bound it.
            if (target + 1 - first) * min(num_sources, links) > CELLS and first < target:
                yield first, target
                first, links = target, more
        yield first, int(ids[-1]) + 1 if len(ids) else 0

    def links(self, first: int, last: int) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Yield the target tokens with ids in [`first`, `last`), with their source sentences.

        Yields:
            A batch of target ids [n]; the number of source tokens of each token's sentence [n]; and
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
    def learn(cls, pairs: Pairs, num_sources: int, iterations: int) -> Lexicon:
        """Run some iterations, starting with all translations equally likely.

        The expected counts of a target token depend on t of that target alone. So each block of
        targets is processed by itself, and only its counts that are not near zero are kept.
        """
        blocks = [CountBlock(first, last) for first, last in pairs.blocks(num_sources)]
        least = MIN_SHARE * np.bincount(pairs.sources, minlength=num_sources)
        totals: Floats | None = None  # None: all translations are equally likely
        for _ in tqdm(range(iterations), "shortlist", disable=None, leave=False):
            sums: Floats = np.zeros(num_sources)
            for block in blocks:
                sums += block.expect(pairs, totals, least)
            totals = sums
        assert totals is not None
        sources = np.concatenate([block.sources for block in blocks])
        targets = np.concatenate([block.first + block.rows for block in blocks])
        counts = np.concatenate([block.counts for block in blocks])
        return cls(sources, targets, counts / totals[sources], num_sources)

    def best(self, count: int) -> npt.NDArray[np.int32]:
        """Return the likeliest targets of each source [number of sources, count].

        Of equally likely targets the lower id comes first. EOS fills up rows with fewer targets.
        """
        order = np.lexsort((self.targets, -self.probabilities, self.sources))
        sources = self.sources[order]
        # In the order of the sources, so that ranks count from the first place of each.
        ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
        kept = ranks < count
        likeliest = np.full((self.num_sources, count), EOS, np.int32)
        likeliest[sources[kept], ranks[kept]] = self.targets[order][kept]
        return likeliest


class CountBlock:
    """Expected counts of source ids with a range of target ids; counts near zero are dropped."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.rows: Ids = np.empty(0, np.int32)  # target - first
        self.sources: Ids = np.empty(0, np.int32)
        self.counts: Floats = np.empty(0, np.float32)

    def expect(self, pairs: Pairs, totals: Floats | None, least: Floats) -> Floats:
        """Run one iteration, and return the sum of the new counts of each source id.

        Args:
            pairs: the sentence pairs.
            totals: sum of the old counts of each source id over all blocks; a count divided by its
                total is t. None: all translations are equally likely.
            least: counts up to this, for each source id, are dropped.
        """
        words = self._source_words(pairs if totals is None else None, len(least))
        # Each of these words has a column; all other words share the first column, where t is 0.
        columns = np.zeros(len(least), np.int32)
        columns[words] = np.arange(1, len(words) + 1)
        # Ones at first: with equal weights, the words of a sentence get equal shares.
        table = np.full((self.last - self.first, len(words) + 1), float(totals is None))
        if totals is not None:
            table[self.rows, columns[self.sources]] = self.counts / totals[self.sources]
        weights_of, counts = table.ravel(), np.zeros(table.size)
        for targets, lengths, sources in pairs.links(self.first, self.last):
            row_starts = (targets.astype(np.int64) - self.first) * table.shape[1]
            cells = np.repeat(row_starts, lengths) + columns[sources]
            weights = weights_of[cells]
            norms = np.add.reduceat(weights, np.cumsum(lengths) - lengths)
            # A target token dropped with every token of its sentence has no share.
            shares = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
            # Expected counts of IBM model 1: each target token is shared out among the source
            # tokens.
            # Not counts[cells] +=, which would add only once where a cell occurs twice.
            np.add.at(counts, cells, weights * np.repeat(shares, lengths))
        expected = counts.reshape(table.shape)[:, 1:]
        rows, kept = np.nonzero(expected > least[words])
        self.rows, self.sources = rows.astype(np.int32), words[kept]
        self.counts = expected[rows, kept].astype(np.float32)
        sums = np.bincount(self.sources, self.counts, len(least))
        return sums.astype(np.float64)

    def _source_words(self, pairs: Pairs | None, num_sources: int) -> Ids:
        """Return the ids of the source words with a count, or of all words in these pairs."""
        is_listed = np.zeros(num_sources, bool)
        is_listed[self.sources] = True
        if pairs is not None:
            for _, _, sources in pairs.links(self.first, self.last):
                is_listed[sources] = True
        return np.flatnonzero(is_listed).astype(np.int32)

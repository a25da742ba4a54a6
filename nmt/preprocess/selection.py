"""Select training pairs: drop duplicates, and sample corpora by their weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nmt.data.columns import RaggedArray
from nmt.data.writer import SplitWriter
from nmt.preprocess.cleaning.pipeline import MAX_EXAMPLES
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Corpus
from nmt.preprocess.encoding import PairStore
from nmt.subwords.subwords import Subwords

SELECTED_AT_ONCE = 100_000
"""Pairs to copy at once from the store to the dataset."""


def select_pairs(
    store: PairStore, config: PreprocessConfig, subwords: Subwords, split: SplitWriter
) -> list[int]:
    """Write the stored pairs to a split, without duplicates and sampled by corpus.

    The reasons ``duplicates`` and ``not_sampled`` are decided here, after all
    cleaning.

    Args:
        store: the encoded pairs.
        config: says whether duplicates are dropped, and how much of each corpus is used.
        subwords: to show examples of duplicates as text.
        split: written, with its counts of dropped pairs and rewritten lines.

    Returns:
        The number of pairs of each corpus.
    """
    stats = store.progress.tally
    repeated = store.repeated() if config.drops_duplicates else None
    start = 0
    wanted = [0] * len(config.corpora)
    with store.reader() as read:
        for number, (corpus, size) in enumerate(
            zip(config.corpora, store.progress.pairs, strict=False)
        ):
            direction = 0
            if subwords.directions:
                direction = subwords.directions.number(corpus.direction)
            new = size
            if repeated is not None:
                dropped = int(np.count_nonzero(repeated[start : start + size]))
                stats.drop("duplicates", dropped)
                new -= dropped
            # Duplicates are dropped before sampling, so that weights count different pairs.
            draw = CopyCounts(new, _wanted(corpus, new, config), (config.seed, number))
            wanted[number] = draw.wanted
            if draw.wanted < new:
                stats.drop("not_sampled", new - draw.wanted)
            for first in range(start, start + size, SELECTED_AT_ONCE):
                last = min(first + SELECTED_AT_ONCE, start + size)
                source, target, *links = read(last - first)
                again = np.zeros(last - first, np.bool_)
                if repeated is not None:
                    again = repeated[first:last]
                    shown = np.flatnonzero(again)[:MAX_EXAMPLES]
                    # They are counted already; here they are only shown.
                    stats.drop("duplicates", 0, _text(source, target, shown, subwords))
                copies = draw.copies(~again)
                split.append(source.keep(copies), target.keep(copies), direction)
                if config.sentence_weights:
                    split.append_weights(np.repeat(store.weights(first, last), copies))
                for column in links:
                    split.append_links(column.keep(copies))
            start += size
    split.dropped, split.rewritten, split.examples = (
        stats.dropped,
        stats.rewritten,
        stats.examples,
    )
    return wanted


def _wanted(corpus: Corpus, pairs: int, config: PreprocessConfig) -> int:
    """Return the number of pairs, copies included, that a corpus gives to this shard."""
    number, count = config.part
    wanted = round(corpus.weight * pairs)
    if corpus.max_pairs is not None:
        # `max_pairs` is for all shards together; the first shards take the remainder.
        share = corpus.max_pairs // count + (number <= corpus.max_pairs % count)
        wanted = min(wanted, share)
    return wanted


class CopyCounts:
    """Number of copies of each pair of a stream, so that the sum of all copies is `wanted`.

    Each pair has equally many copies, and some pairs have one more. These pairs are chosen at
    random, evenly over the stream.
    """

    def __init__(self, pairs: int, wanted: int, seed: tuple[int, int]) -> None:
        self.wanted = wanted
        self._per_pair, self._more = divmod(wanted, max(1, pairs))
        self._left = pairs
        self._random = np.random.Generator(np.random.PCG64(seed))

    def copies(self, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return the number of copies at the next positions [n]; 0 where no pair is present."""
        copies = np.where(present, self._per_pair, 0)
        indices = np.flatnonzero(present)
        if self._more:
            # Each block gets its part of what is still to be drawn, so the total is exact.
            more, rest = divmod(self._more * len(indices), self._left)
            more += int(
                self._random.integers(self._left) < rest
            )  # on average exactly the share of these pairs
            copies[self._random.choice(indices, more, replace=False)] += 1
            self._more -= more
        self._left -= len(indices)
        return copies


def _text(
    source: RaggedArray, target: RaggedArray, indices: npt.NDArray[np.intp], subwords: Subwords
) -> Iterator[list[str]]:
    """Yield pairs as text, decoded from their tokens."""
    for index in indices:
        one, other = (side.take(np.array([index])).tokens.tolist() for side in (source, target))
        yield [*subwords.decode_source([one]), *subwords.decode_target([other])]

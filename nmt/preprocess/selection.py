"""Select training pairs: duplicates leave, and corpora are sampled by weight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nmt.data.columns import Sentences
from nmt.data.writer import SplitWriter
from nmt.preprocess.cleaning import MAX_EXAMPLES
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Corpus
from nmt.preprocess.encoding import Spool
from nmt.preprocess.subwords import (
    Subwords,
)

SELECTED_AT_ONCE = 100_000
"""Pairs that are copied at once from what was encoded to the dataset."""


def select_pairs(
    spool: Spool, config: PreprocessConfig, subwords: Subwords, split: SplitWriter
) -> None:
    """Writes what was encoded, without repeated pairs, and as much of each corpus as is wanted."""
    tally = spool.progress.tally
    repeated = spool.repeated() if config.drops_duplicates else None
    start = 0
    with spool.reader() as read:
        for number, (corpus, size) in enumerate(
            zip(config.corpora, spool.progress.pairs, strict=False)
        ):
            new = size
            if repeated is not None:
                new -= int(np.count_nonzero(repeated[start : start + size]))
                tally.drop("duplicates", size - new)
            draw = CopyCounts(new, _wanted(corpus, new, config), (config.seed, number))
            if draw.wanted < new:
                tally.drop("not_sampled", new - draw.wanted)
            for first in range(start, start + size, SELECTED_AT_ONCE):
                last = min(first + SELECTED_AT_ONCE, start + size)
                source, target = read(last - first)
                again = np.zeros(last - first, np.bool_)
                if repeated is not None:
                    again = repeated[first:last]
                    shown = np.flatnonzero(again)[:MAX_EXAMPLES]
                    tally.drop("duplicates", 0, _text(source, target, shown, subwords))
                copies = draw.copies(~again)
                split.append(source.keep(copies), target.keep(copies))
            start += size
    split.dropped, split.rewritten, split.examples = (
        tally.dropped,
        tally.rewritten,
        tally.examples,
    )


def _wanted(corpus: Corpus, pairs: int, config: PreprocessConfig) -> int:
    """How many pairs a corpus gives to this shard, of those it has."""
    number, count = config.part
    wanted = round(corpus.weight * pairs)
    if corpus.max_pairs is not None:
        share = corpus.max_pairs // count + (number <= corpus.max_pairs % count)
        wanted = min(wanted, share)
    return wanted


class CopyCounts:
    """A given number of copies of a stream of pairs: equally many of each, one more of some.

    Each pair is equally likely to be among the some, which are spread evenly over the stream.
    """

    def __init__(self, pairs: int, wanted: int, seed: tuple[int, int]) -> None:
        self.wanted = wanted
        self._each, self._more = divmod(wanted, max(1, pairs))
        self._left = pairs
        self._random = np.random.Generator(np.random.PCG64(seed))

    def copies(self, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """For the next places [n], how many copies; of none where no pair is present."""
        copies = np.where(present, self._each, 0)
        places = np.flatnonzero(present)
        if self._more:
            more, rest = divmod(self._more * len(places), self._left)
            more += int(self._random.integers(self._left) < rest)  # so on average exactly its share
            copies[self._random.choice(places, more, replace=False)] += 1
            self._more -= more
        self._left -= len(places)
        return copies


def _text(
    source: Sentences, target: Sentences, indices: npt.NDArray[np.intp], subwords: Subwords
) -> Iterator[list[str]]:
    """Pairs as text again."""
    for index in indices:
        one, other = (side.take(np.array([index])).tokens.tolist() for side in (source, target))
        yield [*subwords.decode_source([one]), *subwords.decode_target([other])]

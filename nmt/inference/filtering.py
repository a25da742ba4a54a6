"""Filter parallel text by dual conditional cross-entropy (Junczys-Dowmunt 2018).

F and R are the mean negative log-probabilities of a target token by the forward model and of a
source token by the reverse model. The score exp(-(|F - R| + (F + R) / 2)) is near 1 if both models
assign the pair a similar, high probability, and near 0 otherwise.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, repeat
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from nmt.errors import UnfinishedError
from nmt.inference.lines import LineTranslator
from nmt.preprocess.corpus import Bitext, TextBlock
from nmt.runtime.distributed import World

BLOCK = 1024
"""Pairs that a process scores at once."""

CHARACTERS = 2000
"""A pair with a longer side, or a blank one, is not scored: its score is 0."""

Scores = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]
Scorer = Callable[[Sequence[str], Sequence[str]], Scores]


def dual_scorer(forward: LineTranslator, reverse: LineTranslator) -> Scorer:
    """Return a function of sources and targets that returns the scores of the pairs [n].

    Args:
        forward: translates the sources' language into the targets' language.
        reverse: translates the other way.
    """

    def score(sources: Sequence[str], targets: Sequence[str]) -> Scores:
        """Return the score of each pair."""
        scores = np.zeros(len(sources), np.float32)
        pairs = zip(sources, targets, strict=True)
        scored = [
            at
            for at, pair in enumerate(pairs)
            if max(map(len, pair)) <= CHARACTERS and all(map(str.strip, pair))
        ]
        sides = [sources[at] for at in scored], [targets[at] for at in scored]
        one = _cross_entropies(forward, sides[0], sides[1])
        other = _cross_entropies(reverse, sides[1], sides[0])
        # Both models must find the pair likely, and equally likely. NaN becomes 0, the worst score.
        scores[scored] = np.nan_to_num(np.exp(-(np.abs(one - other) + (one + other) / 2)))
        return scores

    return score


def _cross_entropies(
    translator: LineTranslator, sources: Sequence[str], targets: Sequence[str]
) -> npt.NDArray[np.float64]:
    return np.array([-np.mean(values) for values in translator.score(sources, targets)])


def score_corpus(bitext: Bitext, score: Scorer, path: Path, world: World) -> None:
    """Write the scores of all pairs of a bitext to a file, from the first that it lacks.

    Args:
        bitext: read by the first process.
        score: scores the pairs of this process.
        path: file of float32, one for each pair, to which the first process appends.
        world: the processes that share the pairs.

    Raises:
        UnfinishedError: another process is writing the file.
        NmtError: the bitext cannot be read.
    """
    # Appended to, because the scores before a kill may have taken hours.
    with path.open("ab") as file:
        blocks: Iterator[TextBlock | None] = repeat(None)
        total = 0
        if world.is_main:
            try:
                # Two processes that append to one file would shift all scores.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnfinishedError(
                    f"{path}: another process is writing it; wait or stop it"
                ) from None
            done = file.tell() // 4
            # A kill may have left part of a score.
            file.truncate(4 * done)
            total = bitext.source.stat().st_size
            blocks = chain(bitext.blocks(BLOCK * world.size, done), repeat(None))
        with tqdm(
            desc="scoring", total=total, unit="B", unit_scale=True, leave=False,
            disable=None if world.is_main else True,
        ) as bar:  # fmt: skip
            # Only the first process reads; every other one contributes None.
            while block := world.gather(next(blocks))[0]:
                pairs = block.decode(None)
                # In turn, so that a corpus in order of length gives all processes the same work.
                part = slice(world.rank, None, world.size)
                parts = world.gather(score(pairs.source[part], pairs.target[part]))
                # In a fixed byte order, because another machine may resume the file.
                scores = np.empty(block.lines, "<f4")
                for rank, values in enumerate(parts):
                    scores[rank :: world.size] = values
                if world.is_main:
                    file.write(scores.tobytes())
                    # A kill then loses one block at most.
                    file.flush()
                bar.update(block.position - bar.n)


class Cut:
    """The best pairs of a file of scores; among equal scores, the first ones."""

    def __init__(self, path: Path, keep: float | None, threshold: float | None) -> None:
        """Find the lowest score to keep, in two passes and bounded memory.

        Args:
            path: file of float32, each from 0 to 1.
            keep: share of the pairs to keep, if there is no threshold.
            threshold: least score that is kept.
        """
        self._path = path
        self.pairs = path.stat().st_size // 4
        if threshold is not None:
            self.least, self._ties = np.float32(threshold), self.pairs
            return
        wanted = round((1 if keep is None else keep) * self.pairs)
        # Bits of positive floats sort as the floats do, so two histograms of 16 bits find the
        # threshold without sorting the scores of a corpus.
        high, above = self._nth(wanted, lambda bits: bits >> 16)
        low, more = self._nth(wanted - above, lambda bits: (bits & 0xFFFF)[bits >> 16 == high])
        self.least = np.uint32(high << 16 | low).view(np.float32)
        self._ties = wanted - above - more

    def masks(self) -> Iterator[tuple[Scores, npt.NDArray[np.bool_]]]:
        """Yield the scores of the next pairs [n], and whether each one is kept."""
        ties = self._ties
        for scores in self._scores():
            tied = scores == self.least
            kept = (scores > self.least) | (tied & (np.cumsum(tied) <= ties))
            ties -= np.count_nonzero(tied)
            yield scores, kept

    def _nth(self, count: int, part: Callable[[Bits], npt.NDArray[Any]]) -> tuple[int, int]:
        """Return the `count`-th largest of some values, and how many are larger.

        Args:
            count: rank of the value, from 1.
            part: takes 16 bits of each score. Floats that are not negative are in the order of
                their bits.
        """
        counts = np.zeros(1 << 16, np.int64)
        for scores in self._scores():
            counts += np.bincount(part(scores.view(np.uint32)), minlength=len(counts))
        at_least = np.cumsum(counts[::-1])[::-1]
        # The largest value that at least `count` values reach.
        value = int(np.flatnonzero(at_least >= count)[-1])
        return value, int(at_least[value] - counts[value])

    def _scores(self) -> Iterator[Scores]:
        with self._path.open("rb") as file:
            while len(scores := np.fromfile(file, "<f4", BLOCK)):
                yield scores


def write_kept(bitext: Bitext, cut: Cut, output: IO[bytes]) -> int:
    """Write the pairs that are kept, with a tab between the sides; return their number.

    Lines of a file with two columns are written as they are. A tab within a line of two files
    becomes a space.
    """
    written = 0
    for block, (_, kept) in zip(bitext.blocks(BLOCK), cut.masks(), strict=True):
        rows = block.source.split(b"\n")
        if bitext.target is not None:
            sides = (
                [line.removesuffix(b"\r").replace(b"\t", b" ") for line in side.split(b"\n")]
                for side in (block.source, block.target)
            )
            rows = [b"\t".join(pair) for pair in zip(*sides, strict=False)]  # perhaps an end
        chosen = list(compress(rows, kept))
        output.writelines(row + b"\n" for row in chosen)
        written += len(chosen)
    return written

"""A hidden Markov model of word alignments (Vogel et al. 1996; Och and Ney 2003, section 2.1.1).

Every target word is emitted by a source word, or by the empty word (NULL). The source word depends
on the source word of the previous target word, by the distance between the two. IBM model 1 gives
the first probabilities of the emissions. The empty word has a fixed probability, and the model
remembers the last source word before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.data.columns import RaggedArray
from nmt.data.manifest import Ids
from nmt.data.vocabulary import EOS
from nmt.preprocess.alignment.lexicon import Floats, Lexicon

NULL_PROBABILITY = 0.2
"""Probability that a target word has no source word, as in Och and Ney."""

UNIFORM = 0.1
"""Share of a uniform distribution in the distribution of the next source word."""

MIN_EMISSION = 1e-7
"""Probability of an emission that is not in the lexicon."""

MAX_DISTANCE = 50
"""Greater distances count as this one."""

CELLS = 1 << 18
"""Pairs of a source and a target word in one batch."""


@dataclass(frozen=True)
class AlignmentBatch:
    """Pairs of sentences with equally many source words, the longest target first."""

    indices: Ids
    """[B] the numbers of the pairs."""
    lengths: Ids
    """[B] numbers of target words."""
    emissions: Ids
    """[J, B, I + 1] indices in the table of emissions; the last source word is NULL."""

    def active(self, step: int) -> int:
        """Return the number of sentences with a target word at a step, from 0."""
        # The lengths descend, and searchsorted wants an ascending order.
        return int(np.searchsorted(-self.lengths, -step))


@dataclass(frozen=True)
class Posteriors:
    """Probabilities of the alignments of a batch, given its words."""

    emitted: Floats
    """[J, B, I + 1] for each target word that each source word, or NULL, has emitted it."""
    moves: Floats
    """[I + 1, I] expected moves from each source word, or from the beginning, to the next one."""


class HiddenMarkovModel:
    """Emissions of target words by source words, and moves between source words."""

    def __init__(self, lexicon: Lexicon, num_targets: int) -> None:
        """Begin with the translations of a lexicon, and with short moves."""
        # Source and target as one number, which a binary search finds.
        keys = lexicon.sources.astype(np.int64) * num_targets + lexicon.targets
        order = np.argsort(keys)
        self._keys, self._sources = keys[order], lexicon.sources[order]
        self._num_targets, self._num_sources = num_targets, lexicon.num_sources
        self._emissions = np.append(lexicon.probabilities[order], MIN_EMISSION)
        distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
        # The next source word is the likeliest move.
        self._moves: Floats = 1 / (1 + np.abs(distances - 1.0))

    def fit(self, sources: RaggedArray, targets: RaggedArray) -> None:
        """Run one iteration of expectation maximisation over pairs of sentences."""
        emissions, moves = np.zeros_like(self._emissions), np.zeros_like(self._moves)
        for batch in self._batches(sources, targets):
            posteriors = self._posteriors(batch)
            emissions += np.bincount(
                batch.emissions.ravel(), posteriors.emitted.ravel(), len(emissions)
            )
            moves += np.bincount(
                _distances(posteriors.moves.shape[1]).ravel(), posteriors.moves.ravel(), len(moves)
            )
        totals = np.bincount(self._sources, emissions[:-1], self._num_sources)
        # A source word that emits nothing keeps no emission.
        shares = np.divide(1.0, totals, out=np.zeros_like(totals), where=totals > 0)
        # Never 0, or a pair that needs this emission would have no alignment at all.
        self._emissions[:-1] = np.maximum(emissions[:-1] * shares[self._sources], MIN_EMISSION)
        self._moves = moves + MIN_EMISSION

    def align(self, sources: RaggedArray, targets: RaggedArray) -> list[Ids]:
        """Return the likeliest source word of each target word, from 0; -1 for NULL."""
        aligned: list[Ids] = [np.zeros(0, np.int64)] * len(sources.lengths)
        for batch in self._batches(sources, targets):
            emitted = self._posteriors(batch).emitted
            # The likeliest source word of each target word, not the likeliest path of all.
            best = emitted.argmax(-1)  # [J, B]
            best[best == emitted.shape[-1] - 1] = -1
            for row, index in enumerate(batch.indices):
                aligned[index] = best[: batch.lengths[row], row]
        return aligned

    def _batches(self, sources: RaggedArray, targets: RaggedArray) -> Iterator[AlignmentBatch]:
        """Yield all pairs that have words on both sides."""
        lengths = np.stack((sources.lengths, targets.lengths))
        # Equal source lengths share one matrix of moves.
        order = np.lexsort((-lengths[1], lengths[0]))
        order = order[lengths[:, order].min(0) > 0]
        starts = [np.cumsum(side.lengths) - side.lengths for side in (sources, targets)]
        ordered = lengths[:, order]
        first = 0
        while first < len(order):
            words, longest = ordered[:, first].tolist()
            same = int(np.searchsorted(ordered[0], words, "right"))
            chosen = order[first : min(same, first + max(1, CELLS // (words * longest)))]
            first += len(chosen)
            read = sources.tokens[starts[0][chosen, None] + np.arange(words)]  # [B, I]
            # NULL, which is EOS in the lexicon.
            read = np.append(read, np.full((len(chosen), 1), EOS), 1)
            places = starts[1][chosen] + np.arange(longest)[:, None]  # [J, B]
            # Places after the end of a shorter target read any token; `active` leaves them out.
            heard = targets.tokens[np.minimum(places, len(targets.tokens) - 1)]
            wanted = read.astype(np.int64) * self._num_targets + heard[..., None]
            yield AlignmentBatch(chosen, lengths[1, chosen], self._find(wanted))

    def _find(self, keys: npt.NDArray[np.int64]) -> Ids:
        """Return the indices of emissions; the last index for emissions outside the table."""
        indices = np.searchsorted(self._keys, keys)
        is_known = self._keys[np.minimum(indices, len(self._keys) - 1)] == keys
        return np.where(is_known, indices, len(self._keys))

    def _posteriors(self, batch: AlignmentBatch) -> Posteriors:
        """Run the forward and the backward algorithm over a batch.

        The next source word depends on the last source word alone, whether NULL came after it or
        not.
        """
        emissions = self._emissions[batch.emissions]  # [J, B, I + 1]
        steps, count, words = emissions.shape[0], emissions.shape[1], emissions.shape[2] - 1
        moves = (1 - NULL_PROBABILITY) * self._move_probabilities(words)  # [I + 1, I]
        emissions[..., -1] *= NULL_PROBABILITY
        last = np.zeros((steps + 1, count, words + 1))  # the last source word; at the end: none yet
        last[0, :, -1] = 1.0
        scales = np.ones((steps, count, 1))
        real = np.zeros((steps, count, words))
        for step in range(steps):
            rows = slice(batch.active(step))
            before, emitted = last[step, rows], emissions[step, rows]
            real[step, rows] = (before @ moves) * emitted[:, :-1]
            after = before * emitted[:, -1:]
            after[:, :-1] += real[step, rows]
            # Scaled at each step: products of probabilities of a long sentence would underflow.
            scales[step, rows] = after.sum(1, keepdims=True)
            last[step + 1, rows] = after / scales[step, rows]
        future = np.ones((count, words + 1))
        posterior = np.zeros_like(emissions)
        expected = np.zeros_like(moves)
        for step in reversed(range(steps)):
            rows = slice(batch.active(step))
            before, emitted = last[step, rows], emissions[step, rows] / scales[step, rows]
            ahead = emitted[:, :-1] * future[rows, :-1]
            posterior[step, rows, :-1] = (before @ moves) * ahead
            posterior[step, rows, -1] = (before * emitted[:, -1:] * future[rows]).sum(1)
            # `moves` is a factor of every step, so it is multiplied once at the end.
            expected += before.T @ ahead
            future[rows] = ahead @ moves.T + emitted[:, -1:] * future[rows]
        return Posteriors(posterior, expected * moves)

    def _move_probabilities(self, words: int) -> Floats:
        """Return the probabilities of the next source word [I + 1, I]; the last row begins."""
        weights = self._moves[_distances(words)]
        shares: Floats = weights / weights.sum(1, keepdims=True)
        return (1 - UNIFORM) * shares + UNIFORM / words


def _distances(words: int) -> Ids:
    """Return the index of the distance of each move [I + 1, I]; the beginning is before word 0."""
    begins = np.append(np.arange(words), -1)
    distances = np.arange(words) - begins[:, None]
    indices: Ids = np.clip(distances, -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
    return indices

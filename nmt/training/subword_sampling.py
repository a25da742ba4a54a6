"""Subword regularisation: each epoch segments the training text differently.

For BPE this is BPE-dropout (Provilkov et al. 2020), for unigram models the sampling of Kudo (2018).
The segmentation of a sentence depends on (seed, epoch, sentence) alone, so it is the same after a
resume, for any number of processes and for any micro-batch size.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nmt.data.batches import as_array
from nmt.data.manifest import Ids, Lengths, Side
from nmt.data.sampler import Indices
from nmt.data.vocabulary import EOS, UNK
from nmt.preprocess.segmenters import Segmenter
from nmt.preprocess.subwords import Subwords
from nmt.preprocess.tags import without_tags


class Sentences(Protocol):
    """Source of sentences: a split as it is stored, or augmented."""

    def source(self, index: int) -> Ids:
        """Return the ids [S] of a source sentence, with EOS."""

    def target(self, index: int) -> Ids:
        """Return the ids [T] of a target sentence, with EOS."""

    @property
    def source_lengths(self) -> Lengths:
        """Number of tokens of every stored source sentence, EOS included."""

    @property
    def target_lengths(self) -> Lengths:
        """Number of tokens of every stored target sentence, EOS included."""


@dataclass(frozen=True, kw_only=True)
class SampledSplit:
    """A split that is segmented anew in each epoch.

    The stored subwords are decoded to text, and the text is segmented again; tags at the beginning
    stay. A sentence keeps its stored subwords if it has an unknown character, or if it would become
    longer than the longest stored sentence of its side.
    """

    split: Sentences
    subwords: Subwords
    alpha: float
    """For BPE: the share of merges left out, 0 for none. For unigram models: the exponent of the
    probabilities; a greater one gives less variety."""
    seed: int
    epoch: int = 0

    def padded(self, side: Side, indices: Indices) -> NDArray[np.int64]:
        """Return the sentences at `indices` [B] as rows [B, L] int64, padded with PAD."""
        is_source = side == "source"
        segmenter = self.subwords.source if is_source else self.subwords.target
        stored = self.split.source if is_source else self.split.target
        rows = [stored(int(index)).tolist()[:-1] for index in indices]
        longest = self._longest[side] - 1
        divided = [without_tags(segmenter, row) for row in rows]
        decode = self.subwords.decode_source if is_source else self.subwords.decode_target
        texts = decode([rest for _, rest in divided])
        for place, (index, ids, text) in enumerate(zip(indices, rows, texts, strict=True)):
            if UNK not in ids:
                sampled = divided[place][0] + self._sample(segmenter, side, int(index), text)
                is_usable = 0 < len(sampled) <= longest and UNK not in sampled
                rows[place] = sampled if is_usable else ids
        return as_array([[*row, EOS] for row in rows])

    def _sample(self, segmenter: Segmenter, side: Side, index: int, text: str) -> list[int]:
        key = struct.pack("<4sqqq", side.encode()[:4], self.seed, self.epoch, index)
        digest = hashlib.blake2b(key, digest_size=4).digest()
        return segmenter.sample(text, self.alpha, Random(int.from_bytes(digest, "little")))

    @cached_property
    def _longest(self) -> dict[Side, int]:
        return {
            "source": int(self.split.source_lengths.max(initial=0)),
            "target": int(self.split.target_lengths.max(initial=0)),
        }

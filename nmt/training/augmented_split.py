"""A split whose text is augmented anew in each epoch.

What happens to a pair depends on (seed, epoch, pair) alone, so it is the same after a resume, for
any number of processes and for any micro-batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from nmt.data.batches import PaddedSplit
from nmt.data.dataset import Split
from nmt.data.manifest import Ids, Lengths, Side
from nmt.data.padding import as_array
from nmt.data.sampler import Indices
from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.runs import Run
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import without_tags
from nmt.training.augmentation import Augmentation, Pair, SampledSplit
from nmt.training.config import TrainConfig


def sentences_of_epochs(
    config: TrainConfig, split: Split, run: Run
) -> Callable[[int], PaddedSplit] | None:
    """Return a function that returns the sentences of an epoch; None if epochs do not differ."""
    if not config.augmentation and config.subword_sampling is None:
        return None
    subwords = run.subwords
    if config.augmentation and subwords.context:
        raise NmtError("train.augmentation changes single sentences, not documents")

    # The loader asks for one epoch after the other, several times each.
    @lru_cache(maxsize=1)
    def in_epoch(epoch: int) -> PaddedSplit:
        """Return the sentences of an epoch, the same ones if it is asked for twice in a row."""
        augmented = AugmentedSplit(
            split=split,
            subwords=subwords,
            augmentations=config.augmentation,
            seed=config.seed,
            epoch=epoch,
        )
        if config.subword_sampling is None:
            return augmented
        return SampledSplit(
            split=augmented if config.augmentation else split,
            subwords=subwords,
            alpha=config.subword_sampling,
            seed=config.seed,
            epoch=epoch,
        )

    return in_epoch


SAMPLED_PAIRS = 1000
"""Number of pairs from which the growth of sentences is measured."""


def growth(in_epoch: Callable[[int], PaddedSplit], split: Split) -> float:
    """Return the number of tokens in an epoch for each stored token.

    The ratio is measured on a sample of the first epoch, on the side where it is greater, and is at
    least 1.
    """
    # Spread over the corpus, because corpora are often sorted; measured once, because lengths of a
    # whole epoch would need all of its text.
    sample = np.linspace(0, len(split) - 1, min(len(split), SAMPLED_PAIRS), dtype=np.int64)
    sides: tuple[tuple[Side, Lengths], ...] = (
        ("source", split.source_lengths),
        ("target", split.target_lengths),
    )
    return max(
        1.0,
        *(
            float(np.count_nonzero(in_epoch(1).padded(side, sample) != PAD) / lengths[sample].sum())
            for side, lengths in sides
        ),
    )


@dataclass(frozen=True, kw_only=True)
class AugmentedSplit:
    """A split whose pairs are augmented, in the order of the augmentations.

    The stored subwords are decoded to text, and the changed text is segmented again; tags stay. A
    pair stays as it is stored if one of its sides has, or would have, an unknown character, or if
    one would become longer than the longest stored sentence of the side.
    """

    split: Split
    subwords: Subwords
    augmentations: tuple[Augmentation, ...]
    seed: int
    epoch: int = 0

    def source(self, index: int) -> Ids:
        """Return the ids [S] of a source sentence, with EOS."""
        # One draw changes both sides; the target is kept until the loader asks for it.
        source, self._targets[index] = self._pair(index)
        return source

    def target(self, index: int) -> Ids:
        """Return the ids [T] of a target sentence, with EOS."""
        # Popped, so that an epoch does not keep the text of the whole corpus.
        target = self._targets.pop(index, None)
        return self._pair(index)[1] if target is None else target

    @property
    def source_lengths(self) -> Lengths:
        """Number of tokens of every stored source sentence, EOS included."""
        return self.split.source_lengths

    @property
    def target_lengths(self) -> Lengths:
        """Number of tokens of every stored target sentence, EOS included."""
        return self.split.target_lengths

    def padded(self, side: Side, indices: Indices) -> NDArray[np.int64]:
        """Return the sentences at `indices` [B] as rows [B, L] int64, padded with PAD."""
        sentence = self.source if side == "source" else self.target
        return as_array([sentence(int(index)).tolist() for index in indices])

    def _pair(self, index: int) -> tuple[Ids, Ids]:
        stored = self.split.source(index), self.split.target(index)
        random = np.random.Generator(np.random.PCG64([self.seed, self.epoch, index, 1]))
        chosen = [one for one in self.augmentations if random.random() < one.share]
        # Text with an unknown token cannot be spelled again from its subwords.
        if not chosen or any(UNK in side for side in stored):
            return stored
        tags, pair = self._text(index)
        for augmentation in chosen:
            # A function, because few augmentations need the text of the next pair.
            pair = augmentation.apply(pair, random, lambda: self._after(index, tags))
        encode = self.subwords.encode_source, self.subwords.encode_target
        sides = zip(encode, tags, pair, self._longest, strict=True)
        changed: list[Ids] = []
        for segment, begin, text, longest in sides:
            [ids] = segment([text])
            # The preflight check has tried no sentence longer than the longest stored one.
            if not ids or UNK in ids or len(begin) + len(ids) + 1 > longest:
                return stored
            changed.append(np.array([*begin, *ids, EOS]))
        return changed[0], changed[1]

    def _text(self, index: int) -> tuple[tuple[list[int], list[int]], Pair]:
        """Return the tags and the text of a stored pair."""
        sides = self.split.source(index), self.split.target(index)
        (source_tags, source), (target_tags, target) = (
            without_tags(segmenter, ids.tolist()[:-1])
            for segmenter, ids in zip(
                (self.subwords.source, self.subwords.target), sides, strict=True
            )
        )
        [source_text] = self.subwords.decode_source([source])
        [target_text] = self.subwords.decode_target([target])
        return (source_tags, target_tags), (source_text, target_text)

    def _after(self, index: int, tags: tuple[list[int], list[int]]) -> Pair:
        """Return the text of the next pair.

        If the next pair has different tags, contains UNK, or has weight 0, return this pair's text.
        """
        following = min(index + 1, len(self.split) - 1)
        weights = self.split.weights
        if weights is not None and weights[following] == 0:
            following = index
        if UNK in self.split.source(following) or UNK in self.split.target(following):
            following = index
        others, text = self._text(following)
        return text if others == tags else self._text(index)[1]

    @cached_property
    def _targets(self) -> dict[int, Ids]:
        """Targets that were computed with their sources, by index, until they are read."""
        return {}

    @cached_property
    def _longest(self) -> tuple[int, int]:
        lengths = self.split.source_lengths, self.split.target_lengths
        return int(lengths[0].max(initial=0)), int(lengths[1].max(initial=0))

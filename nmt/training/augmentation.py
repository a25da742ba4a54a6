"""Random changes to training pairs (OpusTrainer, Bogoychev et al. 2023), and subword sampling.

Changes keep the number and the order of the words. They add text only after the sentence.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from nmt.data.manifest import Ids, Lengths, Side
from nmt.data.padding import as_array
from nmt.data.sampler import Indices
from nmt.data.vocabulary import EOS, UNK
from nmt.recipe.registry import Registry
from nmt.subwords.segmenters import Segmenter
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import without_tags

Pair = tuple[str, str]
"""Source and target."""


@dataclass(frozen=True, kw_only=True)
class Augmentation(ABC):
    """A random change to some of the training pairs, drawn anew in each epoch."""

    registry: ClassVar[Registry[Augmentation]]

    name: str = ""
    """Name of the augmentation."""
    share: float = 0.1
    """Share of the pairs that are changed."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share lies in [0, 1], not {self.share}")

    @abstractmethod
    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return the changed pair.

        Args:
            pair: source and target.
            random: source of all random decisions.
            after: returns the next pair of the dataset; for the last pair, the pair itself.
        """


augmentations: Registry[Augmentation] = Registry("augmentation")

Augmentation.registry = augmentations


@augmentations.register("upper_case")
@dataclass(frozen=True, kw_only=True)
class UpperCase(Augmentation):
    """Both sides in upper case."""

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return both sides in upper case."""
        # Both sides: a model that reads capitals should write capitals.
        return pair[0].upper(), pair[1].upper()


@augmentations.register("title_case")
@dataclass(frozen=True, kw_only=True)
class TitleCase(Augmentation):
    """Both sides with the first letter of every word in upper case."""

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return both sides in title case."""
        # Not str.title, which lowers the other letters and raises a letter after an apostrophe.
        source, target = (
            " ".join(word[:1].upper() + word[1:] for word in side.split(" ")) for side in pair
        )
        return source, target


@augmentations.register("typos")
@dataclass(frozen=True, kw_only=True)
class Typos(Augmentation):
    """Misspelt words in the source: a letter is missing, doubled, wrong, or swapped with the next.

    Wrong letters are letters of the sentence, so that they belong to its script.
    """

    rate: float = 0.1
    """Share of the words of a changed source that are misspelt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate lies in [0, 1], not {self.rate}")

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return the pair with a misspelt source."""
        letters = [letter for letter in pair[0] if letter.isalpha()]
        words = pair[0].split(" ")
        for place in np.flatnonzero(random.random(len(words)) < self.rate):
            words[place] = _misspelt(words[place], letters, random)
        return " ".join(words), pair[1]


def _misspelt(word: str, letters: list[str], random: np.random.Generator) -> str:
    """Return a word with one typo; a word of fewer than two letters stays as it is."""
    places = [at for at in range(len(word) - 1) if word[at : at + 2].isalpha()]
    if not places:
        return word
    at = places[random.integers(len(places))]
    one, two, wrong = word[at], word[at + 1], letters[random.integers(len(letters))]
    # Letters of the sentence itself, so a typo never leaves its script.
    wrong = wrong.upper() if two.isupper() else wrong.lower()
    typo = [one, one + two + two, one + wrong, two + one][random.integers(4)]
    return word[:at] + typo + word[at + 2 :]


@augmentations.register("noise")
@dataclass(frozen=True, kw_only=True)
class Noise(Augmentation):
    """Adds the same random word to the end of both sides, so that the model copies such words."""

    characters: str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    """Characters of the words. A character without a piece in the vocabulary changes nothing."""
    max_length: int = 8
    """Largest number of characters of a word."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.characters.strip() or self.max_length < 1:
            raise ValueError("noise needs characters, and max_length must be at least 1")

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return the pair with a random word at the end of both sides."""
        length = random.integers(1, self.max_length + 1)
        word = "".join(random.choice([*self.characters], length))
        return f"{pair[0]} {word}", f"{pair[1]} {word}"


@augmentations.register("merged_sentences")
@dataclass(frozen=True, kw_only=True)
class MergedSentences(Augmentation):
    """Appends the next pair of the dataset, so that the model reads several sentences."""

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return the pair with the next pair appended, unless both pairs are equal."""
        other = after()
        # The last pair of the dataset has no next one, and a repeated sentence would teach to
        # repeat.
        if other == pair:
            return pair
        return f"{pair[0]} {other[0]}", f"{pair[1]} {other[1]}"


class SentenceSource(Protocol):
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

    split: SentenceSource
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
        # Less EOS, which the rows do not have here.
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
        # Seeded for each sentence: SentencePiece's own generator differs between processes.
        # Fixed widths and byte order give one key on all machines.
        key = struct.pack("<4sqqq", side.encode()[:4], self.seed, self.epoch, index)
        digest = hashlib.blake2b(key, digest_size=4).digest()
        return segmenter.sample(text, self.alpha, Random(int.from_bytes(digest, "little")))

    @cached_property
    def _longest(self) -> dict[Side, int]:
        return {
            "source": int(self.split.source_lengths.max(initial=0)),
            "target": int(self.split.target_lengths.max(initial=0)),
        }

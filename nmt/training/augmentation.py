"""Augmentation of training pairs: the contract, and the ways to change a pair.

A pair is text, without tags. The ways are those of OpusTrainer (Bogoychev et al. 2023), which
makes models robust with them: words keep their number and order, and what is added stands behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmt.recipe.registry import Registry

Pair = tuple[str, str]
"""Source and target."""


@dataclass(frozen=True, kw_only=True)
class Augmentation(ABC):
    """A way to change some of the training pairs, others in each epoch."""

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
            after: returns the pair behind this one in the dataset; the pair itself for the last.
        """


augmentations: Registry[Augmentation] = Registry("augmentation")
Augmentation.registry = augmentations


@augmentations.register("upper_case")
@dataclass(frozen=True, kw_only=True)
class UpperCase(Augmentation):
    """Both sides in upper case."""

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return both sides in upper case."""
        return pair[0].upper(), pair[1].upper()


@augmentations.register("title_case")
@dataclass(frozen=True, kw_only=True)
class TitleCase(Augmentation):
    """Both sides with the first letter of every word in upper case."""

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return both sides in title case."""
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
    wrong = wrong.upper() if two.isupper() else wrong.lower()
    typo = [one, one + two + two, one + wrong, two + one][random.integers(4)]
    return word[:at] + typo + word[at + 2 :]


@augmentations.register("noise")
@dataclass(frozen=True, kw_only=True)
class Noise(Augmentation):
    """The same word of random characters behind both sides, so that the model copies such words."""

    characters: str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    """Characters of the words. Those without a piece in the vocabulary change nothing."""
    max_length: int = 8
    """Largest number of characters of a word."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.characters.strip() or self.max_length < 1:
            raise ValueError("noise needs characters, and max_length must be at least 1")

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return the pair with a random word behind both sides."""
        length = random.integers(1, self.max_length + 1)
        word = "".join(random.choice([*self.characters], length))
        return f"{pair[0]} {word}", f"{pair[1]} {word}"


@augmentations.register("merged_sentences")
@dataclass(frozen=True, kw_only=True)
class MergedSentences(Augmentation):
    """The next pair of the dataset behind this one, so that the model reads several sentences."""

    def apply(self, pair: Pair, random: np.random.Generator, after: Callable[[], Pair]) -> Pair:
        """Return the pair with the next one behind it; an equal one, as a copy is, stays away."""
        other = after()
        if other == pair:
            return pair
        return f"{pair[0]} {other[0]}", f"{pair[1]} {other[1]}"

"""The one source of chance in the quickstart corpus."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Draws by `Random.random` alone, whose stream is the same on every version of Python."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def below(self, limit: int) -> int:
        """Gives an integer from 0 to limit - 1."""
        return int(self.source.random() * limit)

    def between(self, low: int, high: int) -> int:
        """Gives an integer from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """Gives true this often."""
        return self.source.random() < probability

    def choose(self, options: Sequence[T]) -> T:
        """Gives one of the options, each as likely as the others."""
        return options[self.below(len(options))]

    def favour(self, options: Sequence[T]) -> T:
        """Gives one of the options, the earlier the likelier, as words are in real texts."""
        return options[int(self.source.random() ** 2 * len(options))]

    def weigh(self, options: Sequence[tuple[T, int]]) -> T:
        """Gives one of the options, as often as its weight says."""
        point = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            point -= weight
            if point < 0:
                return option
        raise ValueError(f"weights must be positive, and these are {options}")

"""Uniform samples of streams whose length is unknown."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def reservoir(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Return a uniform sample of at most `size` items, in one pass over an unknown number of items.

    Vitter's reservoir sampling with Li's skips ("Algorithm L", 1994): draws random numbers only for
    replacements, not for every item.
    """
    generator = random.Random(seed)
    items = iter(items)
    sample = list(itertools.islice(items, size))
    weight = 1.0
    while len(sample) == size:
        weight *= math.exp(math.log1p(-generator.random()) / size)
        skip = math.floor(math.log1p(-generator.random()) / math.log1p(-weight))
        chosen = list(itertools.islice(items, skip, skip + 1))
        if not chosen:
            break
        sample[generator.randrange(size)] = chosen[0]
    return sample

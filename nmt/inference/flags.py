"""Signs that a translation went wrong, which cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Literal

from nmt.data.extremes import Extremes, length_ratio
from nmt.search import Hypothesis
from nmt.search.careful import NGRAM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Flag = Literal["repetition", "too_short", "too_long", "unfinished", "untranslated"]
"""Signs: more repeated n-grams than in the source; a length that is unusual for the source; no end
before the maximum length; little attention to much of the source."""

LITTLE = 0.4
"""Attention to a source token, summed over the translation, that is little."""

MUCH = 0.4
"""Share of the source tokens that is much."""


def flags_of(
    source: Sequence[int], hypothesis: Hypothesis, extremes: Extremes | None
) -> tuple[Flag, ...]:
    """Return the signs that need no attention.

    Args:
        source: tokens of the source, with EOS.
        hypothesis: a translation.
        extremes: extremes of the training sentences; without them only no token is too short.
    """
    output = hypothesis.output
    flags: list[Flag] = []
    # No n-gram repeats where hardly a token does, which is true of most lines and cheap to see.
    if len(output) - len({*output}) > 1 and repetitions(output) > repetitions(source) + 1:
        flags.append("repetition")
    least, most = 0.0, inf
    if extremes and extremes.min_length_ratio and extremes.max_length_ratio:
        least, most = extremes.min_length_ratio, extremes.max_length_ratio
    ratio = length_ratio(len(source), len(output))
    if not hypothesis.tokens or ratio < least:
        flags.append("too_short")
    elif ratio > most:
        flags.append("too_long")
    if not hypothesis.finished:
        flags.append("unfinished")
    return tuple(flags)


def repetitions(tokens: Sequence[int]) -> int:
    """Return how many n-grams of tokens repeat an earlier one."""
    ngrams = list(zip(*(tokens[at:] for at in range(NGRAM)), strict=False))
    return len(ngrams) - len({*ngrams})


def is_untranslated(weights: NDArray[np.float32]) -> bool:
    """Return whether much of the source has little attention.

    Args:
        weights: [T, S + 1], the attention of each target token to each source token and the EOS.
    """
    attended = weights[:, :-1].sum(0)  # [S]
    return bool((attended < LITTLE).sum() > MUCH * len(attended))

"""Weights of training pairs in the loss, from text."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from nmt.errors import NmtError
from nmt.preprocess.annotations import WEIGHTS
from nmt.preprocess.corpus import Chunk

MAX_WEIGHT = 1e6
"""Largest weight of a pair."""


def read_weights(chunk: Chunk) -> npt.NDArray[np.float32]:
    """Return the weights of the pairs of a chunk, [n]; none if it has none.

    Raises:
        NmtError: a line is no number from 0 to :data:`MAX_WEIGHT`.
    """
    texts = chunk.annotations.get(WEIGHTS, [])
    weights = np.array([_number(text) for text in texts], np.float64)
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
    if len(wrong):
        text = texts[wrong[0]]
        raise NmtError(
            f"{chunk.names[WEIGHTS]}: line {chunk.first + wrong[0]}: {text[:40]!r} is no weight; "
            f"write a number from 0 to {MAX_WEIGHT:,.0f}"
        )
    return weights.astype(np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

"""The confidence in a translation, a logistic regression that ``nmt calibrate`` fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

Features = tuple[float, float, float, float]
"""Mean and smallest log-probability of the tokens, logarithm of their number, and logarithm of the
ratio of the characters of text and source."""


def features_of(log_probabilities: Sequence[float], source: str, text: str) -> Features:
    """Return the features of a translation.

    Args:
        log_probabilities: of each token of the translation, at least one.
        source: the line.
        text: the translation.
    """
    size = len(log_probabilities)
    ratio = log((len(text) + 1) / (len(source) + 1))
    return sum(log_probabilities) / size, min(log_probabilities), log(size), ratio


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Held-out lines with a similar confidence."""

    confidence: float
    """Mean confidence."""
    good: float
    """Share of good lines."""
    lines: int
    """Number of lines."""


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The probability that a line is good: that its chrF is above the validation median."""

    bias: float
    weights: Features
    median_chrf: float
    """Median chrF of the sentences of the validation set, in per cent."""
    bins: tuple[Bin, ...]
    """Reliability on the validation set, by cross-validation."""

    def of(self, log_probabilities: Sequence[float], source: str, text: str) -> float:
        """Return the confidence in a translation; arguments as for :func:`features_of`."""
        features = features_of(log_probabilities, source, text)
        logit = self.bias + sum(
            weight * value for weight, value in zip(self.weights, features, strict=True)
        )
        return 1 / (1 + exp(-max(-50.0, min(50.0, logit))))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean distance of confidence and share of good lines."""
        lines = sum(one.lines for one in self.bins)
        return sum(one.lines * abs(one.confidence - one.good) for one in self.bins) / lines

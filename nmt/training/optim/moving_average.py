"""Averages of the weights in training, for validation and translation.

Averaging weights in training (Polyak and Juditsky 1992), as in Marian's
``--exponential-smoothing``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage(ABC):
    """An average of a model's weights that is validated and saved instead of them."""

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = dict(weights)

    @property
    @abstractmethod
    def values(self) -> dict[str, Tensor]:
        """Return the average of each weight by name."""

    def add(self, update: int, is_finite: Tensor) -> None:  # noqa: B027
        """Add the weights after an update to the average, unless the update was skipped.

        Args:
            update: the update's number, from 1.
            is_finite: bool scalar; False leaves the average as it is.
        """

    def load(self, values: dict[str, Tensor]) -> None:  # noqa: B027
        """Set the average to saved values."""

    @contextmanager
    def in_place_of_the_weights(self) -> Iterator[None]:
        """Give the model the averaged weights within the context, then restore its own exactly."""
        trained = {name: weight.data for name, weight in self._weights.items()}
        for name, value in self.values.items():
            # Pointers are exchanged, no weight is copied, so the trained weights come back to the
            # bit.
            self._weights[name].data = value
        try:
            yield
        finally:
            for name, weight in self._weights.items():
                weight.data = trained[name]


class MovingAverage(WeightAverage):
    """The exponential moving average of a model's weights."""

    def __init__(self, weights: Mapping[str, nn.Parameter], decay: float) -> None:
        """Start the average from the current weights.

        Args:
            weights: the weights of a model in training, by name.
            decay: factor of the old average in each update. In early updates it is at most
                (1 + update) / (10 + update), so that the average forgets the initial weights.
        """
        super().__init__(weights)
        self._decay = decay
        self._values = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @property
    def values(self) -> dict[str, Tensor]:
        """Return the moving average of each weight by name."""
        return self._values

    @torch.no_grad()
    def add(self, update: int, is_finite: Tensor) -> None:
        """Add the weights after an update to the average, unless the update was skipped."""
        # A short memory at first, or the average would drag random initial weights along.
        decay = min(self._decay, (1 + update) / (10 + update))
        share = is_finite.float() * (1.0 - decay)  # on the device, without waiting
        for name, weight in self._weights.items():
            self._values[name].lerp_(weight, share)

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Set the average to saved values."""
        for name, value in self._values.items():
            value.copy_(values[name])

"""An exponential moving average of the weights, for validation and translation.

Averaging weights in training: Polyak and Juditsky 1992. The use here is that of Marian's
``--exponential-smoothing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """The exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start the average from the model's current weights.

        Args:
            model: the model in training.
            decay: factor of the old average in each update. In early updates it is at most
                (1 + update) / (10 + update), so that the average forgets the initial weights.
        """
        self._weights = dict(model.named_parameters())
        self._decay = decay
        self.values = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def add(self, update: int, is_finite: Tensor) -> None:
        """Add the weights after an update to the average, unless the update was skipped.

        Args:
            update: the update's number, from 1.
            is_finite: bool scalar; False leaves the average as it is.
        """
        decay = min(self._decay, (1 + update) / (10 + update))
        share = is_finite.float() * (1.0 - decay)  # on the device, without waiting
        for name, weight in self._weights.items():
            self.values[name].lerp_(weight, share)

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Set the average to saved values."""
        for name, value in self.values.items():
            value.copy_(values[name])

    @contextmanager
    def in_place_of_the_weights(self) -> Iterator[None]:
        """Give the model the averaged weights within the context, then restore its own exactly."""
        trained = {name: weight.data for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.data = self.values[name]
        try:
            yield
        finally:
            for name, weight in self._weights.items():
                weight.data = trained[name]

"""A moving average of the weights, which is translated with instead of the newest ones.

Exponential moving averages of training: Polyak and Juditsky 1992 for the idea, Marian's
``--exponential-smoothing`` for its use here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """The exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begins with the weights as they are.

        Args:
            model: whose weights are averaged.
            decay: what is kept of the average per update; less in the first updates, which it
                would otherwise remember for long: (1 + update) / (10 + update) at most.
        """
        self._weights = dict(model.named_parameters())
        self._decay = decay
        self.values = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def add(self, update: int, is_finite: Tensor) -> None:
        """Takes the weights after an update into the average, unless the update was skipped."""
        decay = min(self._decay, (1 + update) / (10 + update))
        share = is_finite.float() * (1.0 - decay)  # on the device: nobody waits for it
        for name, weight in self._weights.items():
            self.values[name].lerp_(weight, share)

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Takes a saved average."""
        for name, value in self.values.items():
            value.copy_(values[name])

    @contextmanager
    def in_place_of_the_weights(self) -> Iterator[None]:
        """While entered, the model has the averaged weights; then its own again, bit by bit."""
        own = {name: weight.data for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.data = self.values[name]
        try:
            yield
        finally:
            for name, weight in self._weights.items():
                weight.data = own[name]

"""Schedule-free AdamW: training at one point, validation and translation at an average.

Source: Defazio et al. 2024, "The Road Less Scheduled" (arXiv:2405.15682). The optimizer moves three
points. The model's weights are *y*, where gradients are computed. The base point *z* takes Adam's
steps, without momentum. The average *x* of all z is what training is for. Since
y = (1 - beta) z + beta x, the average needs no memory: x follows from y and z.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from nmt.training.moving_average import WeightAverage


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """Schedule-free AdamW (Defazio et al. 2024).

    The package ``schedulefree`` computes the same points, but counts steps on the host, so it
    cannot skip a step on the device, and turns y into x and back in place, which changes y by
    rounding whenever the model is validated.
    """

    found_inf: Tensor | None = None
    """One to skip the next step, without waiting for the device; None or zero otherwise."""

    def __init__(
        self,
        decayed: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        """Prepare the first step; the learning rate of both groups is set before each step.

        Args:
            decayed: the weights with weight decay.
            others: the weights without.
            betas: share of the average in y, more than 0; decay rate of the second moment.
            eps: added to the root of the second moment.
            weight_decay: share of each decayed weight taken off per step, times the learning rate.
        """
        super().__init__(
            [
                {"params": list(decayed), "weight_decay": weight_decay},
                {"params": list(others), "weight_decay": 0.0},
            ],
            {"lr": 0.0},
        )
        self._betas, self._eps = betas, eps

    def averaged(self, weight: Tensor) -> Tensor:
        """Return the average x of a weight; of an untrained weight, the weight itself."""
        if "z" not in self.state.get(weight, {}):
            return weight.detach()
        return weight.detach().lerp(self.state[weight]["z"], 1.0 - 1.0 / self._betas[0])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step all weights that have a gradient, unless `found_inf` is one."""
        first = next(weight for group in self.param_groups for weight in group["params"])
        found_inf = first.new_zeros(()) if self.found_inf is None else self.found_inf
        taken = 1.0 - found_inf
        # The clock is that of all weights; the first weight's state stores it.
        clock = self.state[first]
        step = clock.setdefault("step", first.new_zeros(())).add_(taken)
        lr = self.param_groups[0]["lr"]
        lr_squares = clock.setdefault("lr_squares", first.new_zeros(())).add_(taken * lr**2)
        share = taken * lr**2 / lr_squares.clamp(min=torch.finfo(lr_squares.dtype).tiny)
        correction = 1.0 - self._betas[1] ** step.clamp(min=1.0)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    gradient = weight.grad.masked_fill(found_inf.bool(), 0.0)
                    scaled = self._scale(weight, gradient, correction, taken)
                    scaled.add_(weight, alpha=group["weight_decay"])
                    self._move(weight, scaled, taken * lr, share)

    def _scale(
        self, weight: nn.Parameter, gradient: Tensor, correction: Tensor, taken: Tensor
    ) -> Tensor:
        """Add the gradient to the second moment, and return it divided by the moment's root."""
        state = self.state[weight]
        moment: Tensor = state.setdefault("exp_avg_sq", torch.zeros_like(weight))
        moment.lerp_(gradient.square(), taken * (1.0 - self._betas[1]))
        return gradient / (moment / correction).sqrt_().add_(self._eps)

    def _move(self, weight: nn.Parameter, direction: Tensor, rate: Tensor, share: Tensor) -> None:
        """Move z by `rate` against a direction, x by `share` towards z, and y between both.

        A rate and a share of 0 leave all three exactly as they are.
        """
        state = self.state[weight]
        if "z" not in state:
            state["z"] = weight.detach().clone()
        weight.lerp_(state["z"], share)
        weight.sub_(direction * (rate * (1.0 - self._betas[0] * (1.0 - share))))
        state["z"].sub_(direction * rate)


class ScheduleFreeAverage(WeightAverage):
    """The average x of all weights, which the optimizer keeps."""

    def __init__(self, weights: Mapping[str, nn.Parameter], optimizer: ScheduleFreeAdamW) -> None:
        """Take the average from the optimizer of a model's weights."""
        super().__init__(weights)
        self._optimizer = optimizer

    @property
    def values(self) -> dict[str, Tensor]:
        """Return the average of each weight by name, computed anew."""
        return {name: self._optimizer.averaged(weight) for name, weight in self._weights.items()}

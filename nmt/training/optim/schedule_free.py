"""Schedule-free AdamW (Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682).

Gradients are computed at the model's weights y. Adam's steps, without momentum, move z. The average
x of all z is the result. Since y = (1 - beta) z + beta x, x follows from y and z and needs no
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from nmt.training.optim.moving_average import WeightAverage

PIECE = 65536
"""Maximum number of elements of a weight that a CPU steps together; their state takes 1 MB."""


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """Schedule-free AdamW (Defazio et al. 2024).

    The package ``schedulefree`` computes the same points, as long as the rate does not fall: it
    weighs a step by the square of the highest rate so far. But it counts steps on the host, so it
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
        # x = (y - (1 - beta) z) / beta.
        return weight.detach().lerp(self.state[weight]["z"], 1.0 - 1.0 / self._betas[0])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step all weights that have a gradient, unless `found_inf` is one."""
        first = next(weight for group in self.param_groups for weight in group["params"])
        found_inf = first.new_zeros(()) if self.found_inf is None else self.found_inf
        taken = 1.0 - found_inf
        # All weights share one clock; the first weight's state stores it.
        clock = self.state[first]
        step = clock.setdefault("step", first.new_zeros(())).add_(taken)
        lr = self.param_groups[0]["lr"]
        lr_squares = clock.setdefault("lr_squares", first.new_zeros(())).add_(taken * lr**2)
        # Before the first step taken, 0 / 0 would be NaN.
        share = taken * lr**2 / lr_squares.clamp(min=torch.finfo(lr_squares.dtype).tiny)
        # A skipped first step leaves the count at 0, where the correction would be 0.
        correction = 1.0 - self._betas[1] ** step.clamp(min=1.0)
        moment_share = taken * (1.0 - self._betas[1])
        z_rate = taken * lr
        # y follows z by 1 - beta, and x by beta times its share.
        y_rate = z_rate * (1.0 - self._betas[0] * (1.0 - share))
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                for y, z, moment, gradient in _pieces(*self._tensors(weight)):
                    # Zero in a skipped step. (On a CPU, masked_fill takes seven times as long.)
                    finite = gradient.nan_to_num(0.0, 0.0, 0.0).mul_(taken)
                    moment.lerp_(finite.square(), moment_share)
                    direction = finite.div_((moment / correction).sqrt_().add_(self._eps))
                    if group["weight_decay"]:
                        direction.add_(y, alpha=group["weight_decay"])
                    # x goes by `share` towards z, z against the direction, y stays between both.
                    # Rates and a share of 0 leave all three exactly as they are.
                    y.lerp_(z, share)
                    y.addcmul_(direction, y_rate, value=-1.0)
                    z.addcmul_(direction, z_rate, value=-1.0)

    def _tensors(self, weight: nn.Parameter) -> tuple[Tensor, ...]:
        """Return y, z, the second moment and the gradient of a weight."""
        state = self.state[weight]
        if "z" not in state:
            state["z"] = weight.detach().clone()
            state["exp_avg_sq"] = torch.zeros_like(weight)
        assert weight.grad is not None
        return weight, state["z"], state["exp_avg_sq"], weight.grad


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Return tensors of one shape whole, or on a CPU piece by piece.

    All numbers that a step computes for a piece fit in a core's cache.
    """
    if not tensors[0].is_cpu:
        return [tensors]
    number = tensors[0].numel() // PIECE + 1
    rows = (tensor.view(tensor.shape or (1,)) for tensor in tensors)
    return zip(*(tensor.chunk(number) for tensor in rows), strict=True)


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

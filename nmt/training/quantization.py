"""Quantisation-aware training (Jacob et al. 2018): forward passes in numbers of 8 bits.

Weights and inputs of linear layers are rounded as for ``nmt translate --precision int8``. Gradients
pass through the rounding unchanged, by the straight-through estimator of Bengio et al. (2013), and
move weights that keep their full precision.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.adaptation import LowRankLinear


def round_linear_layers(model: Model) -> None:
    """Let training round the weights and inputs of linear layers, in place.

    A loss applies the output layer itself, which is therefore not rounded.

    Raises:
        NmtError: layers have low-rank parts, with which they are merged before they become int8.
    """
    if any(isinstance(module, LowRankLinear) for module in model.modules()):
        raise NmtError(
            "train.quantization rounds no layer with a part of lora; leave out one of them"
        )
    for module in model.modules():  # those that become int8
        kind = type(module)
        if kind is nn.Linear:
            module.__class__ = RoundedLinear
        elif parametrize.is_parametrized(module, "weight") and issubclass(kind, nn.Linear):
            module.__class__ = type(kind.__name__, (RoundedLinear, kind), {})


class RoundedLinear(nn.Linear):
    """A linear layer whose weights and inputs have 8 bits in training."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        if not self.training or not x.numel():
            return super().forward(x)
        weight = rounded(self.weight, self.weight.detach().abs().amax(1, keepdim=True) / 127)
        low, high = x.detach().aminmax()
        return F.linear(rounded(x, (high.clamp(min=0) - low.clamp(max=0)) / 255), weight, self.bias)


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    """Return the nearest multiples of a scale, with the gradient of `x` itself."""
    with torch.no_grad():
        scale = scale.clamp(min=1e-10)
        error = (x / scale).round_().mul_(scale).sub_(x)
    return x + error

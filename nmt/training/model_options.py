"""Options that training puts on any model: dropped layers, frozen weights, rounded weights."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.adaptation import LowRankLinear
from nmt.recipe.registry import nearest


def drop_layers(model: Model, rate: float) -> None:
    """Let training leave out each layer of a model with a probability, for a whole micro-batch.

    Raises:
        NmtError: the model has no layers that can be left out.
    """
    if rate == 0.0:
        return
    layers = list(model.residual_modules("layers"))
    if not layers:
        raise NmtError(
            f"train.layer_dropout: {type(model).__name__} has no layers that can be left out; take "
            "0, and a higher dropout"
        )
    for layer in layers:
        layer.drop_rate = rate


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the weights whose names match a shell pattern.

    Args:
        model: the model; its other weights stay as they are.
        patterns: such as "encoder.*", "*.attention.*" or a full name; `*` also matches dots.

    Raises:
        NmtError: a pattern matches nothing, or all patterns leave nothing to train.
    """
    weights = dict(model.named_parameters())
    for pattern in patterns:
        frozen = [name for name in weights if fnmatchcase(name, pattern)]
        if not frozen:
            raise NmtError(
                f"train.freeze: no weight matches {pattern!r}; " + _remedy(pattern, list(weights))
            )
        for name in frozen:
            weights[name].requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise NmtError(f"train.freeze: {', '.join(patterns)} leave nothing to train")


def _remedy(pattern: str, names: list[str]) -> str:
    """Return a remedy for a wrong pattern: the weight or module pattern probably meant."""
    known = set(names)
    for name in names:
        modules = accumulate(name.split(".")[:-1], "{}.{}".format)
        # A mistyped module gets a suggestion, too.
        known |= {f"{module}.*" for module in modules}
    meant = nearest(pattern, known)
    return f"did you mean {meant!r}?" if meant else "the names are those in model.safetensors"


CheckpointedPart = Literal["none", "layers", "attention"]


def checkpoint_activations(model: Model, part: CheckpointedPart) -> None:
    """Let the modules of a part of a model recompute their activations, in training alone.

    Raises:
        NmtError: the model names no such modules.
    """
    if part == "none":
        return
    modules = list(model.residual_modules(part))
    if not modules:
        raise NmtError(
            f"train.checkpoint_activations: {type(model).__name__} cannot recompute its {part}; "
            "take none, and a lower train.max_tokens for less memory"
        )
    for module in modules:
        module.is_recomputed = True


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
    for module in model.modules():  # the layers that inference rounds to int8
        kind = type(module)
        if kind is nn.Linear:
            # A class instead of a wrapper keeps the names of the weights, and so the checkpoints.
            module.__class__ = RoundedLinear
        elif parametrize.is_parametrized(module, "weight") and issubclass(kind, nn.Linear):
            module.__class__ = type(kind.__name__, (RoundedLinear, kind), {})


class RoundedLinear(nn.Linear):
    """A linear layer whose weights and inputs are rounded to 8 bits in training.

    Gradients pass through the rounding unchanged (straight-through estimator, Bengio et al. 2013)
    and move weights that keep their full precision.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        if not self.training or not x.numel():
            return super().forward(x)
        # A scale for each row, symmetric: -127 to 127.
        weight = rounded(self.weight, self.weight.detach().abs().amax(1, keepdim=True) / 127)
        low, high = x.detach().aminmax()
        # The range includes 0, which int8 must represent exactly.
        return F.linear(rounded(x, (high.clamp(min=0) - low.clamp(max=0)) / 255), weight, self.bias)


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    """Return the nearest multiples of a scale, with the gradient of `x` itself."""
    with torch.no_grad():
        scale = scale.clamp(min=1e-10)
        error = (x / scale).round_().mul_(scale).sub_(x)
    # The value is the rounded number, and the gradient is the gradient of `x`.
    return x + error

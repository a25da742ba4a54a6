"""Layer dropout: training leaves out random layers.

Huang et al. 2016 (*stochastic depth*); Fan et al. 2020 (LayerDrop), for Transformers. The outputs
of the other layers stay as they are, as in LayerDrop.

Freezing: exclude weights from training by patterns of their names.

Activation checkpointing (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*).

The backward pass runs the forward pass of a module again, instead of keeping its activations. Both
passes draw the same random numbers, so the gradients stay the same bits.

Quantisation-aware training (Jacob et al. 2018): forward passes in numbers of 8 bits.

Weights and inputs of linear layers are rounded as for ``nmt translate --precision int8``. Gradients
pass through the rounding unchanged, by the straight-through estimator of Bengio et al. (2013), and
move weights that keep their full precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

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
        layer.forward = _left_out_at_times(layer, rate)


def _left_out_at_times(layer: nn.Module, rate: float) -> Any:
    """Return the forward pass of a layer, or with a probability its first argument."""
    forward = layer.forward

    @wraps(forward)
    def left_out_at_times(x: Tensor, *arguments: Any) -> Tensor:
        """Compute the layer, or return `x` unchanged."""
        # Drawn on the host, also for a GPU, which then need not be waited for.
        if layer.training and torch.rand(()).item() < rate:
            unused = [*_tensors(arguments), *layer.parameters()]
            passed: Tensor = _WithoutUse.apply(x, *unused)  # type: ignore[no-untyped-call]
            return passed
        output: Tensor = forward(x, *arguments)
        return output

    return left_out_at_times


def _tensors(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in lists of them."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from argument


class _WithoutUse(torch.autograd.Function):
    """Returns the first input; the gradients of all others are zero.

    Without these zeros, data parallelism would wait for gradients of the layer's weights forever,
    and an optimizer would treat a layer that was left out unlike one whose gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *unused: Tensor) -> Tensor:
        """Return `x`; the result depends on the unused tensors for the gradient alone."""
        ctx.unused = [(tensor.dtype, tensor.device, tensor.shape) for tensor in unused]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, and gradients of zero for the unused tensors."""
        zeros = (
            torch.zeros((), dtype=dtype, device=device).expand(shape) if wanted else None
            for (dtype, device, shape), wanted in zip(
                ctx.unused, ctx.needs_input_grad[1:], strict=True
            )
        )
        return gradient, *zeros


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
        # On the instance: names of weights stay, and so do calls and hooks of the module.
        module.forward = _recomputed(module)


def _recomputed(module: nn.Module) -> Any:
    """Return the forward pass of a module with its activations recomputed for the gradient."""
    forward = module.forward

    @wraps(forward)
    def recomputed(*arguments: Any, **named: Any) -> Tensor:
        """Compute the module; in training, keep only its arguments for the gradient."""
        if not (module.training and torch.is_grad_enabled()):
            output: Tensor = forward(*arguments, **named)
        else:
            output = checkpoint(forward, *arguments, use_reentrant=False, **named)
        return output

    return recomputed


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

"""Layer dropout: training leaves out random layers.

Huang et al. 2016 (*stochastic depth*); Fan et al. 2020 (LayerDrop), for Transformers. The outputs
of the other layers stay as they are, as in LayerDrop.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from nmt.errors import NmtError
from nmt.models import Model


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

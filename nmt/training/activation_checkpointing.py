"""Activation checkpointing (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*).

The backward pass runs the forward pass of a module again, instead of keeping its activations. Both
passes draw the same random numbers, so the gradients stay the same bits.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.errors import NmtError
from nmt.models import Model

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

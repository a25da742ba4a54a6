"""Models that are built to take the weights of a checkpoint, and are no larger than these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from nmt.errors import NmtError
from nmt.models import Model
from nmt.runs.weights import Tensors, set_weights

RANDOM_FILLS = ("normal_", "uniform_")
"""How the names end of torch's functions that fill a tensor with random numbers."""

CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.arange)
"""Functions that ask for as much memory as their arguments say."""

BUILD_ERRORS = (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError)
"""Raised by torch and Python for sizes that are too large or make no sense."""

REGISTRATIONS = 4
"""Times that a weight may be registered while it is tied or parametrised."""

OTHER_ELEMENTS = 1 << 24
"""Of a tensor that is no weight, such as a table of positions."""


def build_with(build: Callable[[], Model], weights: Tensors) -> Model:
    """Return a model with the given weights.

    The sizes in a recipe may come from anywhere, and are held against the weights: building stops
    as soon as it asks for clearly more. Memory for a weight is only used when values are written
    to it, and no random ones are.

    Args:
        build: makes the model.
        weights: from a file, which is as large as they are.

    Raises:
        NmtError: the model has other weights, or cannot be built.
    """
    total = sum(weight.numel() for weight in weights.values())
    try:
        with (
            _weights_within(REGISTRATIONS * len(weights), REGISTRATIONS * total),
            _BuildingMode(max(total, OTHER_ELEMENTS)),
        ):
            model = build()
    except BUILD_ERRORS as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NmtError(f"no such model can be built: {reason}") from None
    set_weights(model, weights)
    return model


TOO_LARGE = "the model is larger than the weights of the checkpoint"


@contextmanager
def _weights_within(count: int, elements: int) -> Iterator[None]:
    """Stops the building of a model with more weights, or with larger ones."""

    def register(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
        nonlocal count, elements
        count -= 1
        elements -= 0 if weight is None else weight.numel()
        if count < 0 or elements < 0:
            raise NmtError(TOO_LARGE)

    hook = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        hook.remove()


class _BuildingMode(TorchFunctionMode):
    """Leaves out the random values that weights begin with, and stops at a tensor too large."""

    def __init__(self, max_elements: int) -> None:
        super().__init__()
        self._max_elements = max_elements

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "").endswith(RANDOM_FILLS):
            filled = args[0] if args else kwargs["tensor"]
            if isinstance(filled, nn.Parameter):
                return filled
        if function in CREATORS:
            self._check(function(*args, **{**kwargs, "device": "meta"}))  # without its memory
        result = function(*args, **kwargs)
        self._check(result)
        return result

    def _check(self, result: object) -> None:
        if isinstance(result, Tensor) and result.numel() > self._max_elements:
            raise NmtError(TOO_LARGE)

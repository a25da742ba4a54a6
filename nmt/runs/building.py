"""Build models for the weights of a checkpoint, and stop if a model is larger than the weights."""

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
"""Suffixes of the names of torch's functions that fill a tensor with random numbers."""

CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.arange)
"""Functions that allocate as much memory as their arguments say."""

BUILD_ERRORS = (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError)
"""Errors of torch and Python for sizes that are too large or invalid."""

REGISTRATIONS = 4
"""Maximum number of registrations of a weight that is tied or parametrised."""

OTHER_ELEMENTS = 1 << 24
"""Maximum number of elements of a tensor that is not a weight, such as a position table."""


def build_with(build: Callable[[], Model], weights: Tensors) -> Model:
    """Return a model with the given weights.

    The sizes in a recipe are not trusted: building stops as soon as the model allocates clearly
    more than the weights. Weights are not initialised with random values, so they take no memory
    before the given weights are copied.

    Args:
        build: builds the model.
        weights: weights read from a file.

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
    """Stop the building of a model with more weights, or with larger ones."""

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
    """Skips the random initialisation of weights, and raises at a tensor that is too large."""

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
            self._check(function(*args, **{**kwargs, "device": "meta"}))  # allocates no memory
        result = function(*args, **kwargs)
        self._check(result)
        return result

    def _check(self, result: object) -> None:
        if isinstance(result, Tensor) and result.numel() > self._max_elements:
            raise NmtError(TOO_LARGE)

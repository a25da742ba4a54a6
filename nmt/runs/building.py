"""Build models within limits of memory, and check the models of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.laws import broken_laws
from nmt.recipe.plugins import plugin_error
from nmt.runs.checkpoint import Tensors, check_same_shapes, set_weights, weights_of
from nmt.runtime.machine import host_memory, is_out_of_memory

RANDOM_FILLS = ("normal_", "uniform_")
"""Suffixes of the names of torch's functions that fill a tensor with random numbers."""

CREATORS = (torch.empty, torch.zeros, torch.ones, torch.full)
"""Functions whose arguments decide how much memory they allocate. arange is missing, because on the
meta device it imports sympy, which takes a third of a second."""

BUILD_ERRORS = (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError)
"""Errors of torch and Python for sizes that are too large or invalid."""

REGISTRATIONS = 4
"""Maximum number of registrations of a weight that is tied or parametrised."""

OTHER_ELEMENTS = 1 << 24
"""Maximum number of elements of a tensor that is not a weight, such as a position table."""

BYTES_OF_A_WEIGHT = 10_000
"""Least memory of a weight in addition to its elements: its tensor and its module."""


def build_with(build: Callable[[], Model], weights: Tensors, plugins: Sequence[str] = ()) -> Model:
    """Return a model with a copy of the given weights.

    Args:
        build: builds the model.
        weights: weights read from a file.
        plugins: names of the imported plugins, whose errors are named by file and line.

    Raises:
        NmtError: as :func:`build_for`.
    """
    model = build_for(partial(_build_named, build, plugins), weights)
    set_weights(model, weights)
    return model


def build_for(build: Callable[[], Model], weights: Tensors) -> Model:
    """Return a model without values that has the names and shapes of the given weights.

    The sizes in a recipe are not trusted: building stops as soon as the model allocates clearly
    more than the weights. Weights are not initialised with random values, so they take no memory.

    Args:
        build: builds the model.
        weights: weights read from a file.

    Raises:
        NmtError: the model has other weights, or cannot be built.
    """
    total = sum(weight.numel() for weight in weights.values())
    model = _build_within(
        build,
        # A recipe from elsewhere may ask for a model that fills the memory; the checkpoint's own
        # size is the limit.
        count=REGISTRATIONS * len(weights),
        elements=REGISTRATIONS * total,
        mode=_BuildingMode(max(total, OTHER_ELEMENTS), TOO_LARGE),
    )
    check_same_shapes({"the model": weights_of(model), "the checkpoint": weights})
    return model


def build_new(build: Callable[[], Model], plugins: Sequence[str] = ()) -> Model:
    """Return a freshly initialised model.

    Args:
        build: builds the model from torch's global generator.
        plugins: names of the imported plugins, whose errors are named by file and line.

    Raises:
        NmtError: the weights alone take more memory than the machine has, or the model cannot be
            built.
    """
    build = partial(_build_named, build, plugins)
    memory = host_memory()
    too_large = (
        f"the weights of this model take more than the {memory / 1e9:,.1f} GB of memory of this "
        "machine; lower the sizes in the recipe's section model, such as d_model, d_ff and the "
        "layers"
    )
    elements = memory // torch.float32.itemsize
    # A trial build must not use up random numbers of the real one.
    with torch.random.fork_rng(devices=[]):  # weights without values take no memory
        mode = _BuildingMode(elements, too_large)
        _build_within(build, memory // BYTES_OF_A_WEIGHT, elements, mode)
    return build()


def _build_named(build: Callable[[], Model], plugins: Sequence[str]) -> Model:
    """Return the model; an error in the code of a plugin becomes a line with its place.

    Other errors keep their traceback, and an out-of-memory error stays an out-of-memory error.
    """
    try:
        return build()
    except Exception as error:
        if isinstance(error, NmtError) or is_out_of_memory(error):
            raise
        said = plugin_error(error, plugins)
        if said is None:
            raise
        raise NmtError(
            f"no such model can be built: {said}; correct the plugin, or the sizes in the "
            "recipe's section model"
        ) from error


def broken_laws_of(
    model: Model, sizes: tuple[int, int], plugins: Sequence[str], tolerance: float
) -> list[str]:
    """Return the laws that a model of plugins breaks; see :func:`nmt.models.laws.broken_laws`.

    Args:
        model: on any device.
        sizes: numbers of source and target token ids.
        plugins: modules whose code is named in errors.
        tolerance: greatest difference between equal outputs, as a share of the largest output.

    Raises:
        NmtError: the model has another shape than the contract says, or a plugin raises an error.
    """
    try:
        return broken_laws(model, *sizes, tolerance)
    except Exception as error:
        said = str(error) if isinstance(error, NmtError) else plugin_error(error, plugins)
        if said is None or is_out_of_memory(error):
            raise
        raise NmtError(
            f"model {type(model).__name__}: {said}; correct the plugin (docs/guides/extending.md)"
        ) from error


def _build_within(
    build: Callable[[], Model], count: int, elements: int, mode: _BuildingMode
) -> Model:
    """Return the model, unless it has more or larger weights; see :func:`build_with`."""
    try:
        with _weights_within(count, elements, mode.message), mode:
            return build()
    except BUILD_ERRORS as error:
        # torch appends frames of C++ to its messages.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NmtError(f"no such model can be built: {reason}") from None


TOO_LARGE = "the model is larger than the weights of the checkpoint"


@contextmanager
def _weights_within(count: int, elements: int, message: str) -> Iterator[None]:
    """Stop the building of a model with more or larger weights."""

    def register(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
        """Count a weight, and raise an NmtError at the first one beyond a limit."""
        nonlocal count, elements
        count -= 1
        elements -= 0 if weight is None else weight.numel()
        if count < 0 or elements < 0:
            raise NmtError(message)

    hook = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        # The hook is global: left there, it would count the weights of every later model.
        hook.remove()


class _BuildingMode(TorchFunctionMode):
    """Skips the random initialisation of weights, and raises at a tensor that is too large."""

    def __init__(self, max_elements: int, message: str) -> None:
        super().__init__()
        self._max_elements = max_elements
        self.message = message

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
            # Weights come from a checkpoint, so drawing them first would only take time.
            if isinstance(filled, nn.Parameter):
                return filled
        # Counted from the arguments; see `CREATORS`.
        if function is torch.arange:
            bounds = [*args, *(kwargs[name] for name in ("start", "end", "step") if name in kwargs)]
            start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
            if (end - start) / step > self._max_elements:
                raise NmtError(self.message)
        if function in CREATORS:
            self._check(function(*args, **{**kwargs, "device": "meta"}))  # allocates no memory
        result = function(*args, **kwargs)
        self._check(result)
        return result

    def _check(self, result: object) -> None:
        if isinstance(result, Tensor) and result.numel() > self._max_elements:
            raise NmtError(self.message)

"""Load a model for inference from a run directory, and build models within limits of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from nmt.data.manifest import MANIFEST
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.models import Model, ModelConfig
from nmt.models.laws import broken_laws
from nmt.recipe.config import build, dump
from nmt.recipe.plugins import plugin_error
from nmt.runs.calibration import CALIBRATION, Calibration
from nmt.runs.checkpoint import (
    WEIGHTS,
    Base,
    Checkpoint,
    Tensors,
    check_same_shapes,
    set_weights,
    weights_of,
)
from nmt.runs.recipe import RECIPE, import_plugins_of_run
from nmt.runs.run import Run
from nmt.runtime.machine import host_memory, is_out_of_memory
from nmt.subwords.subwords import Subwords

EXPORT = "export.json"
"""File that an export of a run for another engine has instead of ``run.json``."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to translate, with its subwords, recipe, run and checkpoint."""

    model: Model
    subwords: Subwords
    recipe: dict[str, Any]
    """Resolved recipe of the run: plain values."""
    run: Run
    checkpoint: Checkpoint

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the checkpoint, if the run has one.

        Raises:
            NmtError: the calibration is damaged or of another version.
        """
        calibration = Calibration.load(self.run.path)
        if calibration is not None and calibration.weights != self.checkpoint.files[WEIGHTS].sha256:
            warn(
                f"{self.run.path / CALIBRATION}: measured for another checkpoint than "
                f"{self.checkpoint.path.name}, and ignored; make it again with `nmt calibrate`"
            )
            return None
        return calibration


def load_model(
    path: str | Path, device: torch.device | None = None, trust_plugins: bool = False
) -> LoadedModel:
    """Load the model of a run (its best checkpoint, else its last) or of one checkpoint.

    Args:
        path: the run or the checkpoint.
        device: device of the model; the CPU by default.
        trust_plugins: whether to import the Python modules that the recipe names as plugins.

    Raises:
        NmtError: the model is missing, damaged or of another version, or needs plugins that are
            not trusted.
    """
    while True:
        run, checkpoint = find_checkpoint(Path(path))
        import_plugins_of_run(run.path, run.plugins, trust_plugins)
        try:
            return _load(run, checkpoint, device)
        except NmtError:
            if checkpoint.path.exists():
                raise

            # Training has removed the checkpoint meanwhile, and written a newer checkpoint.


def find_checkpoint(path: Path) -> tuple[Run, Checkpoint]:
    """Return the run and the checkpoint at a path.

    Raises:
        NmtError: there is none.
    """
    if Run.exists(path):
        run = Run.open(path)
        if (checkpoint := run.checkpoint("best")) is not None:
            return run, checkpoint
        if (checkpoint := run.checkpoint("last")) is not None:
            warn(
                f"{path}: validation has not found a best checkpoint yet; "
                f"{checkpoint.path.name}, the last, is used"
            )
            return run, checkpoint
        raise NmtError(f"{path}: the run has no checkpoint yet")
    if (path / "checkpoint.json").exists():
        # Resolved, because the link "best" may move to another checkpoint while this one is read.
        checkpoint = Checkpoint.open(path.resolve())
        return Run.open(checkpoint.path.parent), checkpoint
    if (path / EXPORT).exists():
        raise NmtError(
            f"{path}: is an export, which only `nmt translate` and `nmt serve` read; give the run "
            "that was exported"
        )
    what = "has no run.json" if path.is_dir() else "is a file"
    what = "is a dataset" if (path / MANIFEST).exists() else what
    raise NmtError(
        f"{path}: not a trained model: it {what if path.exists() else 'does not exist'}; give "
        "a run directory that `nmt train` has made, or one of its checkpoints"
    )


def _load(run: Run, checkpoint: Checkpoint, device: torch.device | None) -> LoadedModel:
    subwords = run.subwords
    model, recipe = complete_model(run, subwords, checkpoint.weights())
    model.to(device or torch.device("cpu")).eval()
    return LoadedModel(model, subwords, recipe, run, checkpoint)


def complete_model(run: Run, subwords: Subwords, weights: Tensors) -> tuple[Model, dict[str, Any]]:
    """Return a run's model, and the recipe of that model.

    The weights of an adaptation are added to the weights of the run's base, and merged into them if
    possible. After a merge, the recipe has no adaptation.

    Args:
        run: the run.
        subwords: subwords of the run.
        weights: the weights of a checkpoint of the run, or a mean of such weights.

    Raises:
        NmtError: the recipe and the weights do not fit together, or the run's base is missing or
            has other weights.
    """
    sizes = (subwords.source_size, subwords.target_size, subwords.shared)
    section = run.section("model")
    if (base := Base.load(run.path)) is not None:
        # A checkpoint of an adaptation holds only the adaptation's parameters.
        weights = {**base.open(run.path).weights(), **weights}
    try:
        config: ModelConfig = build(ModelConfig, section, "model")  # type: ignore[type-abstract]
        model = build_with(lambda: config.build_adapted(*sizes), weights, run.plugins)
    except NmtError as error:
        raise NmtError(f"{run.path / RECIPE}: {error}") from None
    if config.adaptation is None:
        return model, run.recipe
    merged = replace(config, adaptation=config.adaptation.merge_into(model))
    return model, {**run.recipe, "model": dump(merged)}


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

"""A checkpoint of a run: a directory of files with checksums, and the weights in them.

A run with an adaptation stores only the adaptation's parameters, and names its base checkpoint.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from nmt.errors import NmtError
from nmt.io import documents, files
from nmt.io.documents import DocumentFormat, FileFacts, finite
from nmt.io.files import os_error
from nmt.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 2
"""Version of the run directory and its checkpoints; other versions are refused."""

REMEDY = "use another checkpoint of the run"

# Only the spelling of `Run.save`: with more zeros one update would have two names.
_NAME = re.compile("update_([0-9]{7}|[1-9][0-9]{7,})")

WEIGHTS = "model.safetensors"

OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, kw_only=True)
class _CheckpointDescription:
    """The content of ``checkpoint.json``; a number that is infinite or NaN is null."""

    update: int
    scores: dict[str, float | None]
    trainer_state: dict[str, Any]
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        if self.update < 0:
            raise ValueError(f"update must be at least 0, not {self.update}")
        # A description from elsewhere must not name files outside of its directory.
        documents.check_inside(self.files)


_FORMAT = DocumentFormat(
    kind=_CheckpointDescription, name="nmt-checkpoint", version=VERSION, remedy=REMEDY
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run."""

    path: Path
    update: int
    """Number of optimizer updates."""
    scores: dict[str, float]
    """Scores of the validation at this update, by name; empty without a validation."""
    trainer_state: dict[str, Any]
    """State of the trainer, such as counters, that is kept across resumes."""
    files: dict[str, FileFacts]
    """Size and checksum of each file."""

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read the description of a checkpoint, without its tensors.

        Raises:
            NmtError: the description is missing, damaged, or of another version.
        """
        try:
            description = _FORMAT.read(path / "checkpoint.json")
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path / 'checkpoint.json'}: missing: {path} is not a checkpoint; give a "
                "checkpoint that `nmt train` has made"
            ) from None
        scores = {
            name: math.nan if score is None else score for name, score in description.scores.items()
        }
        return cls(path, description.update, scores, description.trainer_state, description.files)

    @classmethod
    def write(
        cls,
        path: Path,
        update: int,
        tensors: dict[str, Tensors],
        trainer_state: dict[str, Any],
        scores: dict[str, float],
    ) -> None:
        """Write the files of a checkpoint into an existing directory.

        Args:
            path: existing directory.
            update: number of optimizer updates.
            tensors: tensors by the name of their file.
            trainer_state: state of the trainer.
            scores: scores of the validation at this update, by name.
        """
        # The description is written last, with checksums of what is already there.
        facts = {name: write_tensors(path / name, tensors[name]) for name in tensors}
        cls(path, update, scores, trainer_state, facts).describe()

    def describe(self) -> None:
        """Write the description, which replaces an older one; its files stay as they are."""
        description = _CheckpointDescription(
            update=self.update,
            scores=finite({name: float(score) for name, score in self.scores.items()}),
            trainer_state=finite(self.trainer_state),
            files=self.files,
        )
        # Whoever reads while a validation amends the scores finds one whole description.
        with files.whole_file(self.path / "checkpoint.json") as unfinished:
            unfinished.write_text(_FORMAT.text(description), encoding="utf-8")

    @property
    def digest(self) -> str:
        """SHA-256 of the weights.

        Raises:
            NmtError: the description does not name the weights.
        """
        if WEIGHTS not in self.files:
            raise NmtError(f"{self.path / WEIGHTS}: missing in checkpoint.json; {REMEDY}")
        return self.files[WEIGHTS].sha256

    def weights(self) -> dict[str, Tensor]:
        """Read the model's weights and check the file's checksum."""
        return self._tensors(WEIGHTS)

    def optimizer(self) -> dict[str, Tensor]:
        """Read the optimizer's state and check the file's checksum."""
        return self._tensors(OPTIMIZER)

    def verify(self) -> None:
        """Check the weights and every other file that was not removed on purpose.

        Raises:
            NmtError: a file is damaged, or the weights are missing.
        """
        for name in {WEIGHTS, *self.files}:
            # Pruning has removed the optimizer's state of older checkpoints.
            if name == WEIGHTS or (self.path / name).exists():
                self._check(name)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        # Imported here with torch, which reading a description does not need.
        from safetensors.torch import load_file

        path = self._check(name)
        try:
            # Safetensors hold numbers and nothing that could run.
            return load_file(path)
        except FileNotFoundError:  # training has removed the checkpoint meanwhile
            raise NmtError(f"{path}: missing; {REMEDY}") from None
        except SafetensorError as error:
            raise NmtError(f"{path}: not a safetensors file: {error}") from None

    def _check(self, name: str) -> Path:
        path = self.path / name
        if name not in self.files:
            raise NmtError(f"{path}: missing in checkpoint.json; {REMEDY}")
        documents.check(path, self.files[name], REMEDY)
        return path


def average(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """Average the weights of checkpoints in float32; tied weights are stored once.

    Memory holds two sets of weights at a time, regardless of the number of checkpoints.

    Raises:
        NmtError: names or shapes differ, or a checkpoint is damaged.
    """
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        weights = checkpoint.weights()
        if total:
            check_same_shapes({str(checkpoints[0].path): total, str(checkpoint.path): weights})
        for name, weight in weights.items():
            # One checkpoint at a time, in float32: twenty checkpoints of a big model would not fit.
            total[name] = total[name] + weight.float() if name in total else weight.float()
    return {name: weight / len(checkpoints) for name, weight in total.items()}


def checkpoints_in(path: Path) -> list[Path]:
    """Return the paths of all checkpoints in a directory, including damaged ones, oldest first.

    A copy with another name, such as ``update_0001000.keep``, does not count.
    """
    checkpoints = (entry for entry in path.glob("update_*") if _NAME.fullmatch(entry.name))
    # By length first: eight digits come after seven.
    return sorted(checkpoints, key=lambda entry: (len(entry.name), entry.name))


Tensors = Mapping[str, "Tensor"]


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the weights by name, tied weights once."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def set_weights(model: torch.nn.Module, weights: Tensors) -> None:
    """Copy weights into a model.

    Raises:
        NmtError: names or shapes differ.
    """
    copy_weights(weights, weights_of(model))


def copy_weights(weights: Tensors, into: Tensors) -> None:
    """Copy weights from a checkpoint into weights of a model.

    Raises:
        NmtError: names or shapes differ.
    """
    # Before the first copy: a refused checkpoint must not leave a model half overwritten.
    check_same_shapes({"the model": into, "the checkpoint": weights})
    with torch.no_grad():
        for name, weight in into.items():
            weight.copy_(weights[name])


def check_same_shapes(named: Mapping[str, Tensors]) -> None:
    """Check that sets of weights have the same names and shapes.

    Args:
        named: sets of weights by the name of their owner, for the message.

    Raises:
        NmtError: names or shapes differ; the message names the first such weight.
    """
    # Sorted, because a set of strings has another order in each process.
    for name in sorted({name for weights in named.values() for name in weights}):
        shapes = {
            owner: str(list(weights[name].shape)) if name in weights else "missing"
            for owner, weights in named.items()
        }
        if len(set(shapes.values())) > 1:
            description = " and ".join(f"{shape} in {owner}" for owner, shape in shapes.items())
            raise NmtError(f"different shapes: {name} is {description}")


def similarity(first: Tensors, second: Tensors) -> float:
    """Return the cosine of the angle between two sets of weights, -1 to 1.

    Vectors such as biases are left out, because many begin with the same values.

    Raises:
        NmtError: names or shapes differ.
    """
    check_same_shapes({"the first model": first, "the second model": second})

    def product(one: Tensors, other: Tensors) -> float:
        """Return the sum of the products of all elements."""
        return math.fsum(
            torch.sum(weight.float() * other[name].float()).item()
            for name, weight in one.items()
            # Norms begin as ones in every model and would make all models look alike.
            if weight.dim() > 1
        )

    return product(first, second) / math.sqrt(product(first, first) * product(second, second))


def write_tensors(
    path: Path, tensors: Tensors, metadata: dict[str, str] | None = None
) -> FileFacts:
    """Write a file of tensors, perhaps with metadata, and return its size and checksum."""
    from safetensors.torch import save_file

    try:
        # safetensors refuses views such as transposed weights.
        save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, path, metadata)
    except SafetensorError as error:  # raised instead of OSError, even for a full disk
        raise os_error(error, path) from None
    path.chmod(0o644)  # safetensors creates the file unreadable for other users
    return FileFacts.from_file(path)


BASE = "base.json"

BASE_REMEDY = "copy the run again from where it came from, or train it again"


@dataclass(frozen=True, kw_only=True)
class Base:
    """The checkpoint that a run adapts."""

    checkpoint: str
    """Path of the checkpoint from the directory of the run."""
    weights: str
    """SHA-256 of the checkpoint's weights."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, run: Path) -> Base:
        """Return the base for a checkpoint and the directory of the run that adapts it."""
        # Relative, so that both runs can be moved together.
        path = os.path.relpath(checkpoint.path.resolve(), run.resolve())
        return cls(checkpoint=path, weights=checkpoint.digest)

    def save(self, run: Path) -> None:
        """Write the base into a run, replacing an older base."""
        with files.whole_file(run / BASE) as partial:
            partial.write_text(_BASE_FORMAT.text(self), encoding="utf-8")

    @classmethod
    def load(cls, run: Path) -> Base | None:
        """Return the base of a run; None if the run's checkpoints are complete.

        Raises:
            NmtError: the file is damaged or of another version.
        """
        try:
            return _BASE_FORMAT.read(run / BASE)
        except FileNotFoundError:
            return None

    def open(self, run: Path) -> Checkpoint:
        """Return the checkpoint for the run that adapts it.

        Raises:
            NmtError: the checkpoint is missing, damaged, or has other weights.
        """
        path = run / self.checkpoint
        remedy = f"put the base run of {run} there, or a link to it"
        if not path.exists():
            raise NmtError(f"{path}: missing, but {run} adapts this checkpoint; {remedy}")
        checkpoint = Checkpoint.open(path)
        # An adaptation only fits the weights that it was trained on, whatever the path says.
        if checkpoint.digest != self.weights:
            raise NmtError(f"{path}: not the checkpoint that {run} adapts; {remedy}")
        return checkpoint


_BASE_FORMAT = DocumentFormat(kind=Base, name="nmt-base", version=1, remedy=BASE_REMEDY)

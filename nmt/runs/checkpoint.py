"""One saved moment of a run: a directory whose files all have checksums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nmt.errors import NmtError
from nmt.io import files
from nmt.io.documents import DocumentFormat
from nmt.io.files import FileFacts
from nmt.runs.weights import Tensors, check_same_shapes, write_tensors

VERSION = 2
"""Of the run directory and its checkpoints; another version is refused."""

REMEDY = "use another checkpoint of the run"

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The content of ``checkpoint.json``; a score that is no number is null."""

    update: int
    scores: dict[str, float | None]
    trainer_state: dict[str, Any]
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        if self.update < 0:
            raise ValueError(f"update must be at least 0, not {self.update}")
        files.check_inside(self.files)


_FORMAT = DocumentFormat(kind=_Description, name="nmt-checkpoint", version=VERSION, remedy=REMEDY)


@dataclass(frozen=True)
class Checkpoint:
    """One saved moment of a run."""

    path: Path
    update: int
    """Optimizer updates done."""
    scores: dict[str, float]
    """What validation measured at this update, by name; empty where it did not."""
    trainer_state: dict[str, Any]
    """What the trainer counts across resumes."""
    files: dict[str, FileFacts]
    """Size and checksum of each file."""

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Reads a checkpoint's description, and nothing heavier.

        Raises:
            NmtError: it is missing, damaged, or of another version.
        """
        try:
            found = _FORMAT.read(path / "checkpoint.json")
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path / 'checkpoint.json'}: missing: {path} is no checkpoint; give one that "
                "`nmt train` has made"
            ) from None
        scores = {name: math.nan if it is None else it for name, it in found.scores.items()}
        return cls(path, found.update, scores, found.trainer_state, found.files)

    @classmethod
    def write(
        cls,
        path: Path,
        update: int,
        tensors: dict[str, Tensors],
        trainer_state: dict[str, Any],
        scores: dict[str, float],
    ) -> None:
        """Writes the files of a checkpoint, each of some tensors, into an existing directory."""
        description = _Description(
            update=update,
            scores={name: None if math.isnan(it) else float(it) for name, it in scores.items()},
            trainer_state=trainer_state,
            files={name: write_tensors(path / name, tensors[name]) for name in tensors},
        )
        text = _FORMAT.text(description)
        (path / "checkpoint.json").write_text(text, encoding="utf-8")

    def weights(self) -> dict[str, Tensor]:
        """The model's weights, checked."""
        return self._tensors(WEIGHTS)

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's state, checked."""
        return self._tensors(OPTIMIZER)

    def verify(self) -> None:
        """Reads every file that is kept; one that is missing or damaged is an `NmtError`."""
        for name in {WEIGHTS, *self.files}:
            if name == WEIGHTS or (self.path / name).exists():
                self._check(name)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        path = self._check(name)
        try:
            return load_file(path)
        except FileNotFoundError:  # training has removed it since
            raise NmtError(f"{path}: missing; {REMEDY}") from None
        except SafetensorError as error:
            raise NmtError(f"{path}: not a safetensors file: {error}") from None

    def _check(self, name: str) -> Path:
        path = self.path / name
        if name not in self.files:
            raise NmtError(f"{path}: missing in checkpoint.json; {REMEDY}")
        files.check(path, self.files[name], REMEDY)
        return path


def average(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights, taken in float32; tied weights are stored once.

    Holds two sets of weights at a time, however many there are to average.
    """
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        weights = checkpoint.weights()
        if total:
            check_same_shapes({str(checkpoints[0].path): total, str(checkpoint.path): weights})
        for name, weight in weights.items():
            total[name] = total[name] + weight.float() if name in total else weight.float()
    return {name: weight / len(checkpoints) for name, weight in total.items()}

"""A checkpoint of a run: a directory of files with checksums."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nmt.errors import NmtError
from nmt.io import reading
from nmt.io.documents import DocumentFormat, finite
from nmt.io.reading import FileFacts
from nmt.runs.weights import Tensors, check_same_shapes, write_tensors

VERSION = 2
"""Version of the run directory and its checkpoints; other versions are refused."""

REMEDY = "use another checkpoint of the run"

_NAME = re.compile("update_([0-9]{7}|[1-9][0-9]{7,})")

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The content of ``checkpoint.json``; a number that is infinite, or none, is null."""

    update: int
    scores: dict[str, float | None]
    trainer_state: dict[str, Any]
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        if self.update < 0:
            raise ValueError(f"update must be at least 0, not {self.update}")
        reading.check_inside(self.files)


_FORMAT = DocumentFormat(kind=_Description, name="nmt-checkpoint", version=VERSION, remedy=REMEDY)


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
                f"{path / 'checkpoint.json'}: missing: {path} is not a checkpoint; give one that "
                "`nmt train` has made"
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
        description = _Description(
            update=update,
            scores=finite({name: float(score) for name, score in scores.items()}),
            trainer_state=finite(trainer_state),
            files={name: write_tensors(path / name, tensors[name]) for name in tensors},
        )
        text = _FORMAT.text(description)
        (path / "checkpoint.json").write_text(text, encoding="utf-8")

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
            if name == WEIGHTS or (self.path / name).exists():
                self._check(name)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        path = self._check(name)
        try:
            return load_file(path)
        except FileNotFoundError:  # training has removed the checkpoint meanwhile
            raise NmtError(f"{path}: missing; {REMEDY}") from None
        except SafetensorError as error:
            raise NmtError(f"{path}: not a safetensors file: {error}") from None

    def _check(self, name: str) -> Path:
        path = self.path / name
        if name not in self.files:
            raise NmtError(f"{path}: missing in checkpoint.json; {REMEDY}")
        reading.check(path, self.files[name], REMEDY)
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
            total[name] = total[name] + weight.float() if name in total else weight.float()
    return {name: weight / len(checkpoints) for name, weight in total.items()}


def checkpoints_in(path: Path) -> list[Path]:
    """Return the paths of all checkpoints in a directory, including damaged ones, oldest first.

    A copy with another name, such as ``update_0001000.keep``, is none of them.
    """
    checkpoints = (entry for entry in path.glob("update_*") if _NAME.fullmatch(entry.name))
    return sorted(checkpoints, key=lambda entry: (len(entry.name), entry.name))

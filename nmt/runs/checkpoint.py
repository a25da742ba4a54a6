"""One saved moment of a run: a directory whose files all have checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nmt import files
from nmt.errors import NmtError
from nmt.runs.weights import check_same_shapes

VERSION = 1
"""Of the run directory and its checkpoints; another version is refused."""


@dataclass(frozen=True)
class Checkpoint:
    """One saved moment of a run."""

    path: Path
    update: int
    """Optimizer updates done."""
    scores: dict[str, float]
    """What validation measured at this update, by name; empty where it did not."""
    progress: dict[str, Any]
    """What the trainer counts across resumes."""
    files: dict[str, dict[str, Any]]
    """Size and checksum of each file."""

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Reads a checkpoint's description, and nothing heavier.

        Raises:
            NmtError: it is missing, damaged, or of another version.
        """
        values = read_json(path / "checkpoint.json", "nmt-checkpoint")
        named: dict[str, Any] = {
            key: values.get(key) for key in ("update", "scores", "progress", "files")
        }
        if values.get("checksum") != checksum(named):
            raise NmtError(
                f"{path / 'checkpoint.json'}: damaged: its checksum does not match; "
                "use another checkpoint of the run"
            )
        return cls(path, **named)

    def weights(self) -> dict[str, Tensor]:
        """The model's weights, checked."""
        return self._tensors("model.safetensors")

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's state, checked."""
        return self._tensors("optimizer.safetensors")

    def verify(self) -> None:
        """Reads every file that is kept; one that is missing or damaged is an `NmtError`."""
        for name in self.files:
            if name == "model.safetensors" or (self.path / name).exists():
                self._checked(name)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        path = self._checked(name)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise NmtError(f"{path}: not a safetensors file: {error}") from None

    def _checked(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            raise NmtError(f"{path}: missing; use another checkpoint of the run")
        if name not in self.files or files.sha256(path) != self.files[name]["sha256"]:
            raise NmtError(
                f"{path}: damaged: {path.stat().st_size} bytes that do not match the checksum "
                "in checkpoint.json; use another checkpoint of the run"
            )
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


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """Return the values of a description of the expected format.

    Raises:
        NmtError: the file is missing, damaged, or of another format or version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        kind = expected.removeprefix("nmt-")
        raise NmtError(
            f"{path}: missing: {path.parent} is no {kind}; give one that `nmt train` has made"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise NmtError(f"{path}: damaged: not JSON") from None
    if not isinstance(values, dict) or values.get("format") != expected:
        raise NmtError(f"{path}: not a file of format {expected}")
    if values.get("version") != VERSION:
        raise NmtError(
            f"{path}: format version {values.get('version')}, but this nmt reads {VERSION}"
        )
    return values


def checksum(values: Mapping[str, Any]) -> str:
    """Return the checksum of plain values, the same for equal ones."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

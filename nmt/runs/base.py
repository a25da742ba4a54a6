"""The checkpoint that a run adapts: checkpoints of the run hold the parts put on it alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nmt.errors import NmtError
from nmt.io import files
from nmt.io.documents import DocumentFormat
from nmt.runs.checkpoint import WEIGHTS, Checkpoint

BASE = "base.json"

REMEDY = "copy the run again from where it came from, or train it again"


@dataclass(frozen=True, kw_only=True)
class Base:
    """The checkpoint that a run adapts."""

    checkpoint: str
    """Path of the checkpoint from the directory of the run."""
    weights: str
    """SHA-256 of the checkpoint's weights."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, run: Path) -> Base:
        """Return the base for a checkpoint and the directory of the run that adapts it."""
        path = os.path.relpath(checkpoint.path.resolve(), run.resolve())
        return cls(checkpoint=path, weights=checkpoint.files[WEIGHTS].sha256)

    def save(self, run: Path) -> None:
        """Write the base into a run, replacing an older one."""
        with files.whole_file(run / BASE) as partial:
            partial.write_text(_FORMAT.text(self), encoding="utf-8")

    @classmethod
    def load(cls, run: Path) -> Base | None:
        """Return the base of a run; None if the run's checkpoints are complete.

        Raises:
            NmtError: the file is damaged or of another version.
        """
        try:
            return _FORMAT.read(run / BASE)
        except FileNotFoundError:
            return None

    def open(self, run: Path) -> Checkpoint:
        """Return the checkpoint for the run that adapts it.

        Raises:
            NmtError: the checkpoint is missing, damaged, or another one.
        """
        path = run / self.checkpoint
        remedy = f"put the run that {run} began with there, or a link to that run"
        if not path.exists():
            raise NmtError(f"{path}: missing, but {run} adapts this checkpoint; {remedy}")
        checkpoint = Checkpoint.open(path)
        if checkpoint.files[WEIGHTS].sha256 != self.weights:
            raise NmtError(f"{path}: not the checkpoint that {run} adapts; {remedy}")
        return checkpoint


_FORMAT = DocumentFormat(kind=Base, name="nmt-base", version=1, remedy=REMEDY)

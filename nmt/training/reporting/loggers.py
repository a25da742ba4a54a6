"""Loggers send training reports to services such as TensorBoard and Weights & Biases.

Each logger needs a package that is an extra, a key of the section `train`, and a line in
:mod:`nmt.training.run`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nmt.errors import NmtError, install
from nmt.recipe.config import flatten
from nmt.runs import Run


class Logger(Protocol):
    """A place that receives the records of the log."""

    name: str
    """Key of the section `train` that turns it on."""

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add a record of a kind, with the number of its update as `update`."""

    def close(self) -> None:
        """Send what was not sent yet."""


def numbers(kind: str, values: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a record by their names, RECORD/KEY."""
    return {
        f"{kind}/{name}": value
        for name, value in values.items()
        if name != "update" and isinstance(value, (int, float))
    }


def parameters(run: Run) -> dict[str, Any]:
    """Return the recipe of a run by dotted keys."""
    return flatten(run.recipe)


class Board:
    """Writes each number of a record to the curve RECORD/KEY, over updates."""

    name = "tensorboard"

    def __init__(self, directory: Path, done: int) -> None:
        """Open a new event file.

        Args:
            directory: directory of the event files; created if it is missing.
            done: updates already done; records of later updates by a killed run are hidden.

        Raises:
            NmtError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise NmtError(
                f"train.tensorboard needs TensorBoard; {install('tensorboard')}; or draw the log "
                "with nmt report"
            ) from None
        # Points after the resumed update belong to work that was lost.
        self._writer = SummaryWriter(str(directory), purge_step=done + 1)

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add the numbers of a record."""
        for name, value in numbers(kind, values).items():
            self._writer.add_scalar(name, value, values["update"])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbLogger:
    """Writes each number of a record to the metric RECORD/KEY, over updates.

    The environment variables of wandb choose the destination, such as ``WANDB_PROJECT``.
    """

    name = "wandb"

    def __init__(self, run: Run) -> None:
        """Begin a run of Weights & Biases, or continue the one of a resumed training.

        Raises:
            NmtError: the package wandb is not installed.
        """
        try:
            import wandb
        except ImportError:
            raise NmtError(f"train.wandb needs Weights & Biases; {install('wandb')}") from None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "nmt"),
            # The run's own identity, so that a resumed training continues the same curves.
            id=run.identity,
            resume="allow",
            name=run.path.resolve().name,
            config=parameters(run),
            # A resumed run may have changed some keys of its recipe.
            allow_val_change=True,
        )
        self._run.define_metric("*", step_metric="update")

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add the numbers of a record."""
        self._run.log({**numbers(kind, values), "update": values["update"]})

    def close(self) -> None:
        """Send the rest, and end the run of Weights & Biases."""
        self._run.finish()

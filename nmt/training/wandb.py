"""Reports to Weights & Biases; needs the extra ``nmt-toolkit[wandb]``.

Its environment variables say where and how: ``WANDB_PROJECT``, ``WANDB_API_KEY``, ``WANDB_MODE``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nmt.errors import NmtError, install
from nmt.runs import Run
from nmt.training.loggers import numbers, parameters


class WandbLogger:
    """Writes each number of a record to the metric RECORD/KEY, over updates."""

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
            id=run.identity,
            resume="allow",
            name=run.path.resolve().name,
            config=parameters(run),
            allow_val_change=True,
        )
        self._run.define_metric("*", step_metric="update")

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add the numbers of a record."""
        self._run.log({**numbers(kind, values), "update": values["update"]})

    def close(self) -> None:
        """Send the rest, and end the run of Weights & Biases."""
        self._run.finish()

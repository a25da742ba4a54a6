"""Reports to TensorBoard; needs the extra ``nmt-toolkit[tensorboard]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nmt.errors import NmtError, install
from nmt.training.loggers import numbers


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
        self._writer = SummaryWriter(str(directory), purge_step=done + 1)

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add the numbers of a record."""
        for name, value in numbers(kind, values).items():
            self._writer.add_scalar(name, value, values["update"])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

"""The records of a run's log as TensorBoard's curves; needs ``nmt-toolkit[tensorboard]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nmt.errors import NmtError


class Board:
    """Writes each number of a record as the curve RECORD/KEY, over updates."""

    def __init__(self, directory: Path, done: int) -> None:
        """A board that goes on after an update.

        Args:
            directory: of TensorBoard's event files, made where it is missing.
            done: updates already done; what a killed run wrote of later ones is hidden.

        Raises:
            NmtError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise NmtError(
                "train.tensorboard: TensorBoard is not installed; "
                "pip install 'nmt-toolkit[tensorboard]', or draw the log with --plot"
            ) from None
        self._writer = SummaryWriter(str(directory), purge_step=done + 1)

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Adds the numbers of one record."""
        for name, value in values.items():
            if name != "update" and isinstance(value, (int, float)):
                self._writer.add_scalar(f"{kind}/{name}", value, values["update"])
        self._writer.flush()

    def close(self) -> None:
        """Ends the last file."""
        self._writer.close()

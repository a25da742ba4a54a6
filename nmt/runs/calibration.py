"""Ranges of the inputs of linear layers, so that int8 computes a line alike in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nmt.io import files
from nmt.io.documents import DocumentFormat

CALIBRATION = "calibration.json"

REMEDY = "make it again with `nmt calibrate`"

Range = tuple[float, float]
"""Smallest and largest number."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Ranges of the inputs of a checkpoint's linear layers."""

    weights: str
    """SHA-256 of the checkpoint's weights."""
    ranges: dict[str, Range]
    """Smallest and largest input of each layer, by its name in the model."""

    def save(self, run: Path) -> Path:
        """Write the calibration into a run, replacing an older calibration, and return its path."""
        path = run / CALIBRATION
        with files.whole_file(path) as partial:
            partial.write_text(_FORMAT.text(self), encoding="utf-8")
        return path

    @classmethod
    def load(cls, run: Path) -> Calibration | None:
        """Return the calibration of a run, if the run has one.

        Raises:
            NmtError: the calibration is damaged or of another version.
        """
        try:
            # A run without a calibration is usual; int8 then takes ranges of each batch.
            return _FORMAT.read(run / CALIBRATION)
        except FileNotFoundError:
            return None


_FORMAT = DocumentFormat(kind=Calibration, name="nmt-calibration", version=1, remedy=REMEDY)

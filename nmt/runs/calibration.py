"""Results of ``nmt calibrate``: the confidence in translations, and ranges for Bergamot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nmt.io import files
from nmt.io.documents import DocumentFormat
from nmt.runs.confidence import Confidence

CALIBRATION = "calibration.json"

Range = tuple[float, float]
"""Smallest and largest number."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measurements of a checkpoint."""

    weights: str
    """SHA-256 of the checkpoint's weights."""
    ranges: dict[str, Range]
    """Smallest and largest input of each linear layer, by its name, for exports to Bergamot."""
    confidence: Confidence | None = None
    """None if the validation set is too small, or the model is of documents."""

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
            return _FORMAT.read(run / CALIBRATION)
        except FileNotFoundError:  # a run without a calibration is usual
            return None


_FORMAT = DocumentFormat(
    kind=Calibration, name="nmt-calibration", version=1, remedy="make it again with `nmt calibrate`"
)

"""The trainer's state across resumes, beside weights and optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.runs import Checkpoint

MEASURED = ("best", "best_loss", "mark", "mark_loss")
"""Results of validation, which may be less than 0; all else is counted."""


@dataclass
class TrainerState:
    """What is counted across resumes."""

    update: int = 0
    seconds: float = 0.0
    """Of training, without validation and saving."""
    seconds_since_report: float = 0.0
    """Of these, since the last report."""
    best: float | None = None
    best_loss: float | None = None
    """Of the best validation; of two equally good ones, that with the lower loss is better."""
    best_update: int = 0
    patience_best: float | None = None
    patience_best_loss: float | None = None
    """Of the best regular validation. The extra one at the end of training is none: a run that
    goes on must not differ from one that never stopped."""
    validations_since_best: int = 0
    """Regular validations since the best of them."""
    plateaus: int = 0
    """How often the schedule took this for a reason to lower the learning rate."""
    skipped: int = 0
    """Updates whose gradient was not finite."""
    saved_seconds: float = 0.0
    """Seconds of training at the last checkpoint."""
    valid_seconds: float = 0.0
    """Seconds of training at the last validation."""
    running_stats: list[dict[str, float]] = field(default_factory=list)
    """Sums since the last report, of each process."""
    loss_scale: list[float] = field(default_factory=list)
    """In fp16, what the loss is multiplied by, and the updates since that last changed."""
    max_tokens: int = 0
    """Positions of a micro-batch, where they were found by trial."""
    max_tokens_devices: list[str] = field(default_factory=list)
    """Kinds of devices on which they were."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in MEASURED and isinstance(value, (int, float)) and value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> TrainerState:
        """Return the state that a checkpoint holds.

        Raises:
            NmtError: it is none, or that of another update.
        """
        place = f"{checkpoint.path}: trainer_state"
        values = {
            name: None if _is_nan(it) else it for name, it in checkpoint.trainer_state.items()
        }
        state = build(cls, values, place)
        if state.update != checkpoint.update:
            raise NmtError(f"{place}.update: {state.update} instead of {checkpoint.update}")
        return state


def _is_nan(value: object) -> bool:
    """Whether it is the loss of a validation that diverged, which is like none."""
    return isinstance(value, float) and math.isnan(value)

"""The trainer's counters, which checkpoints store beside weights and optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.runs import Checkpoint

MEASURED = ("best", "best_loss", "patience_best", "patience_best_loss")
"""Results of validation, which may be negative, unlike all counters."""


@dataclass
class TrainerState:
    """Counters of training that continue across resumes."""

    update: int = 0
    seconds: float = 0.0
    """Seconds of training, without validation and saving."""
    seconds_since_report: float = 0.0
    """Those of `seconds` since the last report."""
    best: float | None = None
    best_loss: float | None = None
    """Loss of the best validation; breaks ties, lower is better."""
    best_update: int = 0
    patience_best: float | None = None
    patience_best_loss: float | None = None
    """Loss of the best regular validation. The final validation does not count: a resumed run must
    not differ from one that never stopped."""
    validations_since_best: int = 0
    """Regular validations since the best one."""
    plateaus: int = 0
    """Plateaus so far: the schedule lowers the learning rate at each."""
    skipped: int = 0
    """Updates whose gradient was not finite."""
    saved_seconds: float = 0.0
    """Seconds of training at the last checkpoint."""
    valid_seconds: float = 0.0
    """Seconds of training at the last validation."""
    running_stats: list[dict[str, float]] = field(default_factory=list)
    """Sums since the last report, of each process."""
    loss_scale: list[float] = field(default_factory=list)
    """In fp16, the loss scale, and the updates in a row without an overflow."""
    max_tokens: int = 0
    """Tokens of a micro-batch, with padding if there is any, that a trial found; 0 without one."""
    max_tokens_devices: list[str] = field(default_factory=list)
    """Kinds of devices on which the trial ran."""
    max_tokens_activations: str = ""
    """`checkpoint_activations` of the trial; "" in checkpoints of older versions."""
    max_tokens_recorded: bool = False
    """`cuda_graphs` of the trial."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in MEASURED and isinstance(value, (int, float)) and value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")

    @property
    def is_at_best(self) -> bool:
        """Return whether the current update has the best validation so far."""
        return self.best_update == self.update

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> TrainerState:
        """Return the state that a checkpoint holds.

        Raises:
            NmtError: the stored state is invalid, or of another update.
        """
        place = f"{checkpoint.path}: trainer_state"
        values = {
            name: None if _is_nan(value) else value
            for name, value in checkpoint.trainer_state.items()
        }
        state = build(cls, values, place)
        if state.update != checkpoint.update:
            raise NmtError(f"{place}.update: {state.update} instead of {checkpoint.update}")
        return state


def _is_nan(value: object) -> bool:
    """Return whether a value is NaN, the loss of a diverged validation; it counts as none."""
    return isinstance(value, float) and math.isnan(value)

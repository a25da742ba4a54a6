"""Milestones of training: when to validate, to write a checkpoint, and to stop.

The decisions depend on the recipe and on the trainer's state alone, and a checkpoint holds that
state. A run that is interrupted and resumed therefore decides as one that never stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from nmt.training.config import TrainConfig
from nmt.training.state import TrainerState

PLANNED = ("max_updates", "max_epochs", "max_minutes")
"""Stop reasons that trigger a final validation."""


@dataclass(frozen=True)
class Milestones:
    """Decides what is due after an update, and counts validations towards patience."""

    config: TrainConfig
    state: TrainerState
    """The trainer's state, which each update and :meth:`count_validation` change."""
    last_update: int
    """Number of the last update of the training."""

    def reason_to_stop(self) -> str | None:
        """Return why training ends after this update, or None if it continues."""
        config, state = self.config, self.state
        if state.update >= self.last_update:
            return "max_updates" if state.update >= config.max_updates else "max_epochs"
        if config.max_minutes is not None and state.seconds >= 60 * config.max_minutes:
            return "max_minutes"
        return self.out_of_patience()

    def out_of_patience(self) -> str | None:
        """Return "patience" if the last `patience` validations were not the best, else None."""
        patience = self.config.patience
        is_out = patience is not None and self.state.validations_since_best >= patience
        return "patience" if is_out else None

    def is_validation_due(self, reason: str | None) -> bool:
        """Return whether to validate after this update; `reason` says why training ends, if so."""
        return self.state.update > 0 and (self._is_regular_validation() or reason in PLANNED)

    def is_save_due(self) -> bool:
        """Return whether to write a regular checkpoint after this update."""
        config, state = self.config, self.state
        minutes = (state.seconds - state.saved_seconds) / 60
        by_clock = config.save_minutes is not None and minutes >= config.save_minutes
        return by_clock or state.update % config.save_every == 0

    def count_validation(self, scores: dict[str, float]) -> bool:
        """Count a validation of this update, and return whether its score is the best so far."""
        state, sort_key = self.state, self.config.sort_key
        value, loss = scores[self.config.best_metric], scores["loss"]
        is_best = sort_key(value, loss) > sort_key(state.best, state.best_loss)
        if is_best:
            state.best, state.best_loss = value, loss
            state.best_update = state.update
        if self._is_regular_validation():
            self._count_towards_patience(value, loss)
        return is_best

    def _is_regular_validation(self) -> bool:
        config, state = self.config, self.state
        minutes = (state.seconds - state.valid_seconds) / 60
        by_clock = config.valid_minutes is not None and minutes >= config.valid_minutes
        return by_clock or state.update % config.valid_every == 0

    def _count_towards_patience(self, value: float, loss: float) -> None:
        """Count a regular validation towards patience and plateaus."""
        state, sort_key = self.state, self.config.sort_key
        state.valid_seconds = state.seconds
        state.validations_since_best += 1
        if sort_key(value, loss) > sort_key(state.patience_best, state.patience_best_loss):
            state.patience_best, state.patience_best_loss = value, loss
            state.validations_since_best = 0
        state.plateaus += self.config.schedule.is_plateau(state.validations_since_best)

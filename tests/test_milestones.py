"""What is due after an update: a validation, a checkpoint, the end of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from for_each import for_each

from nmt.training.config import TrainConfig
from nmt.training.loop import Milestones
from nmt.training.optim.schedules import schedules
from nmt.training.trainer import TrainerState


def milestones(state: dict[str, Any], last_update: int = 100, **config: Any) -> Milestones:
    return Milestones(TrainConfig(max_updates=100, **config), TrainerState(**state), last_update)


@for_each(
    ("state", "config", "last_update", "reason"),
    [
        ({"update": 99, "seconds": 1e9, "validations_since_best": 99}, {}, 100, None),
        ({"update": 100}, {}, 100, "max_updates"),
        ({"update": 40}, {"max_epochs": 2}, 40, "max_epochs"),
        ({"update": 1, "seconds": 119.9}, {"max_minutes": 2}, 100, None),
        ({"update": 1, "seconds": 120.0}, {"max_minutes": 2}, 100, "max_minutes"),
        ({"update": 1, "validations_since_best": 2}, {"patience": 3}, 100, None),
        ({"update": 1, "validations_since_best": 3}, {"patience": 3}, 100, "patience"),
    ],
)
def test_training_ends_at_the_first_limit(
    state: dict[str, Any], config: dict[str, Any], last_update: int, reason: str | None
) -> None:
    assert milestones(state, last_update, **config).reason_to_stop() == reason


@for_each(
    ("state", "reason", "is_due"),
    [
        ({"update": 0}, "max_updates", False),
        ({"update": 5}, None, False),
        ({"update": 10}, None, True),
        ({"update": 5}, "max_updates", True),
        ({"update": 5}, "max_epochs", True),
        ({"update": 5}, "max_minutes", True),
        ({"update": 5}, "signal 15", False),
        ({"update": 5}, "patience", False),
        ({"update": 5, "valid_seconds": 30.0, "seconds": 89.0}, None, False),
        ({"update": 5, "valid_seconds": 30.0, "seconds": 90.0}, None, True),
    ],
)
def test_validation_is_due_by_updates_by_minutes_and_at_a_planned_end(
    state: dict[str, Any], reason: str | None, is_due: bool
) -> None:
    due = milestones(state, valid_every=10, valid_minutes=1.0).is_validation_due(reason)
    assert due == is_due


@for_each(
    ("state", "is_due"),
    [
        ({"update": 9}, False),
        ({"update": 10}, True),
        ({"update": 9, "saved_seconds": 30.0, "seconds": 89.0}, False),
        ({"update": 9, "saved_seconds": 30.0, "seconds": 90.0}, True),
    ],
)
def test_a_checkpoint_is_due_by_updates_and_by_minutes(state: dict[str, Any], is_due: bool) -> None:
    assert milestones(state, save_every=10, save_minutes=1.0).is_save_due() == is_due


def test_regular_validations_count_towards_patience_and_plateaus() -> None:
    schedule = replace(schedules["plateau"], lr=1.0, plateau=2)
    due = milestones({}, valid_every=10, best_metric="loss", schedule=schedule)
    is_best = []
    for update, loss in [(10, 3.0), (20, 2.0), (25, 1.0), (30, 1.5), (40, 1.5)]:
        due.state.update = update
        is_best.append(due.count_validation({"loss": loss}))
    assert is_best == [True, True, True, False, False]
    assert (due.state.best, due.state.best_update) == (1.0, 25)
    # The final validation, after update 25, is the best one, but does not count.
    assert (due.state.patience_best, due.state.validations_since_best) == (1.5, 1)
    assert not due.state.is_at_best
    assert due.state.plateaus == 0
    due.state.update = 50
    due.count_validation({"loss": 9.0})
    assert due.state.plateaus == 1


def test_the_minutes_to_a_validation_begin_anew_with_each_regular_one() -> None:
    due = milestones({}, valid_every=100, valid_minutes=1, best_metric="loss")
    validated = []
    for update in range(1, 8):
        due.state.update, due.state.seconds = update, 25.0 * update
        if due.is_validation_due(None):
            due.count_validation({"loss": 1.0})
            validated.append(update)
    assert validated == [3, 6]

"""The trainer's state in a checkpoint is checked when training resumes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from for_each import for_each
from fuzz.seals import seal

from nmt.errors import NmtError
from nmt.runs import Checkpoint
from nmt.training.trainer import TrainerState


def checkpoint(**state: Any) -> Checkpoint:
    return Checkpoint(Path("run/update_0000006"), 6, {}, {"update": 6, **state}, {})


def test_the_state_is_as_it_was_saved() -> None:
    sums = [{"updates": 2.0}]
    scores = {"best": -0.5, "patience_best": -0.5}
    restored = TrainerState.from_checkpoint(
        checkpoint(**scores, best_loss=math.nan, running_stats=sums, loss_scale=[8.0, 1])
    )
    assert restored == TrainerState(
        6, **scores, best_loss=None, running_stats=sums, loss_scale=[8.0, 1.0]
    )


@for_each(
    ("values", "message"),
    [
        ({"seconds": []}, ".seconds: expected a number, not []"),
        ({"validations_since_best": -1}, ": validations_since_best must be at least 0, not -1"),
        (
            {"running_stats": [{"loss": None}]},
            ".running_stats.loss: expected a number, not nothing",
        ),
        ({"more": 1}, ": unknown key 'more'"),
        ({"update": 5}, ".update: 5 instead of 6"),
    ],
)
def test_other_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError) as error:
        TrainerState.from_checkpoint(replace(checkpoint(), trainer_state={"update": 6, **values}))
    assert str(error.value).startswith(f"run/update_0000006: trainer_state{message}")


def test_a_forged_state_is_passed_over(run: Path, train: Command) -> None:
    description = run / "update_0000006" / "checkpoint.json"
    values = json.loads(description.read_text())
    values["trainer_state"]["seconds"] = []
    description.write_text(json.dumps(values))
    seal(description)
    done = train(run, "--max-updates", 6)
    assert done.status == 0
    assert (
        f"nmt: warning: {description.parent}: trainer_state.seconds: expected a number" in done.err
    )
    assert "resumed after update 4" in done.err

"""What a checkpoint says of the progress of training is checked when training resumes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from fuzz.seals import seal

from nmt.errors import NmtError
from nmt.runs import Checkpoint
from nmt.training.state import Progress


def checkpoint(**progress: Any) -> Checkpoint:
    return Checkpoint(Path("run/update_0000006"), 6, {}, {"update": 6, **progress}, {})


def test_progress_is_as_it_was_saved() -> None:
    windows = [{"updates": 2.0}]
    found = Progress.of(
        checkpoint(best=-0.5, best_loss=math.nan, windows=windows, loss_scale=[8.0, 1])
    )
    assert found == Progress(6, best=-0.5, best_loss=None, windows=windows, loss_scale=[8.0, 1.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seconds": []}, ".seconds: expected a number, not []"),
        ({"stale": -1}, ": stale must be at least 0, not -1"),
        ({"windows": [{"loss": None}]}, ".windows.loss: expected a number, not None"),
        ({"more": 1}, ": unknown key 'more'"),
        ({"update": 5}, ".update: 5 instead of 6"),
    ],
)
def test_other_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError) as error:
        Progress.of(replace(checkpoint(), progress={"update": 6, **values}))
    assert str(error.value).startswith(f"run/update_0000006: progress{message}")


def test_a_forged_progress_is_passed_over(run: Path, train: Command) -> None:
    description = run / "update_0000006" / "checkpoint.json"
    values = json.loads(description.read_text())
    values["progress"]["seconds"] = []
    description.write_text(json.dumps(values))
    seal(description)
    done = train(run, "--max-updates", 6)
    assert done.status == 0
    assert f"nmt: warning: {description.parent}: progress.seconds: expected a number" in done.err
    assert "resumed after update 4" in done.err

"""What two trainings must have in common to be the same training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint import Checkpoint

TIMES = {"seconds", "target_tokens_per_second", "memory_mb"}


def records(run: Path) -> list[dict[str, Any]]:
    """The log, without times and without the notes of having been resumed."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    kept = [line for line in lines if line["record"] != "resumed"]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in kept]


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """Weights, optimizer and scores, bit by bit."""
    first, second = Checkpoint.open(one), Checkpoint.open(other)
    assert (first.update, first.scores) == (second.update, second.scores)
    for mine, theirs in (
        (first.weights(), second.weights()),
        (first.optimizer(), second.optimizer()),
    ):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)

"""What two trainings must have in common to be the same training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nmt.runs import Checkpoint
from nmt.runs.run import _FORMAT

TIMES = {"time", "seconds", "target_tokens_per_second", "memory_mb"}


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


def assert_resumes_as_if_it_never_stopped(train: Any, directory: Path, *settings: object) -> None:
    """A training in two parts is that of one part; without the settings it is another one."""
    often = ("--set", "train.log_every=4", "--valid-every", 3)
    for name, updates, values in (
        ("whole", (12,), settings),
        ("parts", (6, 12), settings),
        ("plain", (12,), ()),
    ):
        for last in updates:
            assert train(directory / name, *often, *values, "--max-updates", last).status == 0
    whole, parts, plain = (directory / name for name in ("whole", "parts", "plain"))
    assert records(parts) == records(whole)
    assert_same_checkpoint(parts / "last", whole / "last")
    assert records(plain) != records(whole)


def last_update(run: Path) -> int:
    log = run / "log.jsonl"
    complete = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
    return int(json.loads(complete[-1])["update"]) if complete else 0


def assert_same_run(run: Path, whole: Path) -> None:
    # What was done again between the last checkpoint and a kill stands in the log twice.
    last_said = {(line["record"], line["update"]): line for line in records(run)}
    assert sorted(last_said.values(), key=str) == sorted(records(whole), key=str)
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in run.iterdir()) == names
    for name in ("last", "best"):
        assert (run / name).readlink() == (whole / name).readlink()
        assert trainer_state(run / name) == trainer_state(whole / name)
    assert_same_checkpoint(run / "last", whole / "last")
    assert translations(run) == translations(whole)


def translations(run: Path) -> dict[str, str]:
    """What a run keeps of its validations, by file."""
    return {path.name: path.read_text("utf-8") for path in (run / "validation").glob("*.txt")}


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    """What is counted, without times."""
    values = json.loads((checkpoint / "checkpoint.json").read_text())["trainer_state"]
    return {key: value for key, value in values.items() if "seconds" not in key}


def turn(run: Path) -> None:
    """Let a run say that it translates in the other direction."""
    path = run / "run.json"
    stored = _FORMAT.read(path)
    turned = replace(stored, source_lang=stored.target_lang, target_lang=stored.source_lang)
    path.write_text(_FORMAT.text(turned), encoding="utf-8")

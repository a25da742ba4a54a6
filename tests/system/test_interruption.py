"""Real processes that are stopped or killed, and the same command again."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trained_runs import assert_same_checkpoint, records

from nmt.checkpoint import Checkpoint

UPDATES = 110
OPTIONS = (
    *("--max-updates", UPDATES, "--save-every", 7, "--valid-every", 40),
    *("--set", "train.log_every=3", "--set", "train.valid_metrics=[]"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, train: Any) -> Path:
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert train(run, *OPTIONS).status == 0
    return run


@contextmanager
def training(run: Path, recipe: Path, dataset: Path) -> Iterator[subprocess.Popen[str]]:
    places = ("--config", recipe, "--data", dataset, "--save-dir", run)
    command = [sys.executable, "-m", "nmt", "train", *places, *OPTIONS]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(run: Path, update: int, process: subprocess.Popen[str]) -> None:
    """Returns when the log says that an update is done."""
    log = run / "log.jsonl"
    while not log.exists() or last_update(log) < update:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def last_update(log: Path) -> int:
    complete = log.read_text().rpartition("\n")[0].splitlines()
    return int(json.loads(complete[-1])["update"]) if complete else 0


def test_signals_save_and_exit_and_the_same_command_ends_as_if_nothing_had_been(
    train: Any, whole: Path, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped_at = 0
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with training(run, recipe, dataset) as process:
            wait_for(run, stopped_at + 10, process)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        assert process.returncode == status, err
        assert err.endswith(f"training ended: signal {number}\n")
        assert f"resumed after update {stopped_at}" in err or not stopped_at
        stopped_at = Checkpoint.open(run / "last").update
        assert 10 <= stopped_at < UPDATES
    assert train(run, *OPTIONS).status == 0
    assert records(run) == records(whole)
    assert_same_checkpoint(run / "last", whole / "last")


def test_a_killed_training_ends_as_if_nothing_had_been_by_the_same_command(
    train: Any, whole: Path, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    for least in (10, 45):
        with training(run, recipe, dataset) as process:
            wait_for(run, moments.randrange(least, least + 30), process)
            time.sleep(moments.random() * 0.02)
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL
    shutil.copytree(run / "last", run / ".update_0000999.partial-1")  # as if killed while saving
    done = train(run, *OPTIONS)
    assert done.status == 0, done.err
    assert "resumed after update" in done.err
    # What was done again between the last checkpoint and the kill stands in the log twice.
    last_said = {(line["record"], line["update"]): line for line in records(run)}
    assert sorted(last_said.values(), key=str) == sorted(records(whole), key=str)
    assert_same_checkpoint(run / "last", whole / "last")
    assert sorted(path.name for path in run.iterdir()) == sorted(
        path.name for path in whole.iterdir()
    )

"""Real processes that are stopped, and the same command again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trained_runs import assert_same_checkpoint, last_update, records

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
    while last_update(run) < update:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


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
        assert f"resumed after update {stopped_at}" in err or not stopped_at
        stopped_at = Checkpoint.open(run / "last").update
        assert err.endswith(
            f"training ended: interrupted by {number.name}; all is saved after update "
            f"{stopped_at}, and the same command goes on from there\n"
        )
        assert 10 <= stopped_at < UPDATES
    assert train(run, *OPTIONS).status == 0
    assert records(run) == records(whole)
    assert_same_checkpoint(run / "last", whole / "last")

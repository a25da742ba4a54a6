"""SIGKILL at random moments, and the same command again: the same bits as without."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from trained_runs import assert_same_run, last_update

pytestmark = pytest.mark.full

UPDATES = 60
OPTIONS = (
    *("--max-updates", UPDATES, "--save-every", 4, "--valid-every", 6),
    *("--set", "train.log_every=3", "--set", "train.valid_metrics=[chrf]"),
)
IN_SAVE = 0.3
"""Share of kills at one of the steps of writing a file, of which there are few."""

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["nmt.training.run", "nmt.cli.train", "torch._dynamo"])


def run_nmt(arguments: tuple[str, ...], output: Path, die_at_sync: int, die_at_update: int) -> None:
    """``nmt ARGUMENTS`` in a process of its own that has torch already."""
    from nmt.cli.app import main
    from nmt.io import files
    from nmt.training.trainer import Trainer

    syncs = 0
    whole, train = files.sync, Trainer.step

    def sync(path: Path) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == die_at_sync:
            os.kill(os.getpid(), signal.SIGKILL)
        whole(path)

    def step(trainer: Trainer, update: Any, rate: float) -> Any:
        if update.number == die_at_update:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(trainer, update, rate)

    patched = mock.patch.object(files, "sync", sync), mock.patch.object(Trainer, "step", step)
    with output.open("w") as stream, patched[0], patched[1]:
        sys.stderr = sys.stdout = stream
        sys.argv = ["nmt", *arguments]
        main()


class Killer:
    """Starts a command again and again, and kills it."""

    def __init__(self, run: Path, arguments: tuple[object, ...], seed: int) -> None:
        self.run = run
        self.arguments = tuple(map(str, arguments))
        self.random = random.Random(seed)

    def start(self, die_at_sync: int = 0, die_at_update: int = 0) -> BaseProcess:
        output = self.run.with_suffix(".output")
        arguments = self.arguments, output, die_at_sync, die_at_update
        process = forkserver.Process(target=run_nmt, args=arguments, daemon=True)
        process.start()
        return process

    def kill_once(self) -> None:
        """At a random moment of the next dozen updates, or while a file is written."""
        in_save = self.random.random() < IN_SAVE
        process = self.start(self.random.randrange(1, 25) if in_save else 0)
        target = last_update(self.run) + self.random.randrange(0, 9)
        wait(lambda: not process.is_alive() or (not in_save and last_update(self.run) >= target))
        time.sleep(self.random.random() * 0.05)
        process.kill()
        process.join()

    def kill_at(self, update: int) -> None:
        """When an update is about to begin."""
        process = self.start(die_at_update=update)
        process.join()
        assert process.exitcode == -signal.SIGKILL, self.run.with_suffix(".output").read_text()

    def finish(self) -> None:
        process = self.start()
        process.join()
        assert process.exitcode == 0, self.run.with_suffix(".output").read_text()


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kills_change_nothing(
    precision: str, kills: int, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    same = ("--config", recipe, "--data", dataset, "--precision", precision, *OPTIONS)
    whole, killed = (
        Killer(run, ("train", "--save-dir", run, *same), seed)
        for run in (tmp_path / "whole", tmp_path / "killed")
    )
    whole.finish()
    for _ in range(kills):
        killed.kill_once()
    killed.finish()
    assert_same_run(killed.run, whole.run)


def test_kills_in_each_stage_change_nothing(
    recipe: Path, corpus: Path, nmt: Callable[..., Any], tmp_path: Path
) -> None:
    dataset = tmp_path / "data"
    corpora = [{"path": f"{corpus}/train", "name": name} for name in ("clean", "back")]
    made = (f"--valid={corpus / 'valid'}", "--output-dir", dataset)
    made = (*made, "--set", f"preprocess.train={corpora}")
    assert nmt("preprocess", "--config", recipe, *made).status == 0
    stages = (
        "[{until: 21, mix: {clean: 0.7, back: 0.3}}, {until: 40, mix: {clean: 0.2, back: 0.8}},"
        " {mix: {clean: 1}}]"
    )
    same = ("--config", recipe, "--data", dataset, *OPTIONS, "--set", f"train.stages={stages}")
    whole, killed = (
        Killer(run, ("train", "--save-dir", run, *same), 1)
        for run in (tmp_path / "whole", tmp_path / "killed")
    )
    whole.finish()
    for update in (11, 30, 52):
        killed.kill_at(update)
    killed.finish()
    assert_same_run(killed.run, whole.run)

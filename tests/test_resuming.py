"""Several processes resume from the checkpoint that the main process chooses, or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import NmtError
from nmt.runs import Run
from nmt.runtime.distributed import World
from nmt.training.start import SavedTraining, read_newest


@dataclass(frozen=True, kw_only=True)
class ThreadWorld(World):
    """A process that is a thread of the test."""

    meeting: threading.Barrier
    values: list[Any]

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.meeting.wait(60)
        gathered = [*self.values]
        self.meeting.wait(60)
        return gathered


def read_by_all(runs: list[Run]) -> list[Future[SavedTraining | None]]:
    """What each process reads, which sees a directory of its own."""
    meeting, values = threading.Barrier(len(runs)), [None] * len(runs)
    with ThreadPoolExecutor(len(runs)) as pool:
        return [
            pool.submit(
                read_newest,
                run,
                ThreadWorld(rank=rank, size=len(runs), meeting=meeting, values=values),
            )
            for rank, run in enumerate(runs)
        ]


@pytest.fixture
def copies(run: Path, tmp_path: Path) -> list[Path]:
    """Directories of the run as two machines see them."""
    return [run, Path(shutil.copytree(run, tmp_path / "other", symlinks=True))]


class StaleRun(Run):
    """A run whose directory seems to have no newest checkpoint yet."""

    def checkpoint_paths(self) -> list[Path]:
        return super().checkpoint_paths()[:-1]


def test_all_processes_read_the_checkpoint_that_the_main_process_finds(run: Path) -> None:
    for runs in ([Run.open(run), StaleRun.open(run)], [StaleRun.open(run), Run.open(run)]):
        read = [it.result() for it in read_by_all(runs)]
        assert [it and it.checkpoint.path for it in read] == [runs[0].checkpoint_paths()[-1]] * 2


def test_damage_that_the_main_process_finds_sends_all_to_the_checkpoint_before(
    copies: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = copies[0] / "update_0000006" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    read = [it.result() for it in read_by_all([*map(Run.open, copies)])]
    assert [it and it.state.update for it in read] == [4, 4]
    assert capfd.readouterr().err.count(f"nmt: warning: {damaged}: ") == 1


@pytest.mark.parametrize("problem", ["missing", "damaged", "unreadable"])
def test_a_process_that_cannot_read_the_checkpoint_ends_all(
    copies: list[Path], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = copies[1] / "update_0000006"
    reason = "missing"
    if problem == "missing":
        shutil.rmtree(newest)
    elif problem == "damaged":
        (newest / "checkpoint.json").write_text("{")
        reason = "damaged"
    else:
        check = Run.open(copies[0]).checkpoints()[0].__class__._check

        def check_or_fail(self: Any, name: str) -> Path:
            if self.path == newest:
                raise OSError(5, os.strerror(5), str(newest / name))
            return check(self, name)

        monkeypatch.setattr("nmt.runs.checkpoint.Checkpoint._check", check_or_fail)
        reason = os.strerror(5)
    for path, read in zip(copies, read_by_all([*map(Run.open, copies)]), strict=True):
        with pytest.raises(NmtError) as error:
            read.result()
        said = str(error.value)
        assert said.startswith(
            f"rank 1: cannot read {path / 'update_0000006'}, from which rank 0 resumes ("
        )
        assert reason in said
        assert said.endswith("same files, and run the same command again on all machines")


def test_an_error_of_the_disk_of_the_main_process_ends_all(
    copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, name: str) -> Path:
        raise OSError(5, os.strerror(5), str(self.path / name))

    monkeypatch.setattr("nmt.runs.checkpoint.Checkpoint._check", fail)
    for read in read_by_all([*map(Run.open, copies)]):
        with pytest.raises(OSError, match="update_0000006"):
            read.result()

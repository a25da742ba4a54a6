"""TensorBoard itself is an extra; here a stand-in notes what it would be given."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trained_runs import records

from nmt.errors import NmtError
from nmt.training.reporting.loggers import Board


class Writer:
    """What is used of torch's SummaryWriter."""

    calls: list[tuple[Any, ...]]

    def __init__(self, directory: str, purge_step: int) -> None:
        Writer.calls = [("open", directory, purge_step)]

    def add_scalar(self, name: str, value: float, update: int) -> None:
        Writer.calls.append((name, value, update))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        Writer.calls.append(("close",))


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return Writer


def test_every_number_of_a_record_becomes_a_point(writer: type[Writer], tmp_path: Path) -> None:
    board = Board(tmp_path, done=3)
    board.add("skipped", {"update": 4, "where": "first in encoder.0", "sentences": 9})
    board.close()
    assert writer.calls == [("open", str(tmp_path), 4), ("skipped/sentences", 9, 4), ("close",)]


def test_training_sends_its_log_to_the_board(
    train: Any, tmp_path: Path, writer: type[Writer]
) -> None:
    run = tmp_path / "run"
    assert train(run, "--set", "train.tensorboard=true").status == 0
    assert writer.calls[0] == ("open", f"{run}/tensorboard", 1)
    assert writer.calls[-1] == ("close",)
    losses = [call[1:] for call in writer.calls if call[0] == "validation/loss"]
    logged = [line for line in records(run) if line["record"] == "validation"]
    assert losses == [(line["loss"], line["update"]) for line in logged]


def test_without_the_package_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(NmtError, match=r"pip install 'nmt-toolkit\[tensorboard\]'"):
        Board(tmp_path, done=0)

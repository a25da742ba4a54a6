import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import NmtError
from nmt.training.plot import plot, read_curves

RECORDS = [
    {"record": "train", "update": 2, "loss": 5.0, "lr": 0.1},
    {"record": "validation", "update": 2, "loss": 6.0, "perplexity": 9.0, "bleu": 1, "best": True}
    | {"time": "2026-11-22T05:00:00+00:00"},
    {"record": "train", "update": 4, "loss": 4.0, "lr": 0.2},
    {"record": "resumed", "update": 2, "processes": 1},
    {"record": "train", "update": 4, "loss": 4.5, "lr": 0.2, "reward": 0.5},
    {"record": "train", "update": 6, "loss": float("nan"), "lr": 0.3},
]


def write(path: Path, end: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS) + end)
    return path


def test_the_curves_of_a_log_by_panel(tmp_path: Path) -> None:
    # The last line is half-written, as a kill leaves it; update 4 was done twice.
    assert read_curves(write(tmp_path / "log.jsonl", end='{"record": "tr')) == {
        "loss": {"training": {2: 5.0, 4: 4.5}, "validation": {2: 6.0}},
        "learning rate": {"": {2: 0.1, 4: 0.2, 6: 0.3}},
        "bleu": {"": {2: 1}},
        "reward": {"": {4: 0.5}},
    }


def test_the_picture_has_a_line_for_each_curve_within_its_panel(tmp_path: Path) -> None:
    plot(write(tmp_path / "log.jsonl"), tmp_path / "curves.svg")
    root = ElementTree.parse(tmp_path / "curves.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    panels = root.findall(f"{name}g")
    lines = [[line.get("points") for line in panel.iter(f"{name}polyline")] for panel in panels]
    # x from 70 to 700 over 6 updates, y from 170 up to 30 over the values of the panel.
    assert lines == [
        ["280.0,123.3 490.0,170.0", "280.0,30.0"],
        ["280.0,170.0 490.0,100.0 700.0,30.0"],
        ["280.0,170.0"],
        ["490.0,170.0"],
    ]
    assert root.get("height") == "800"


def test_a_log_without_a_report_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(NmtError, match="no report to draw yet"):
        plot(tmp_path / "log.jsonl", tmp_path / "curves.svg")
    assert not (tmp_path / "curves.svg").exists()


@pytest.mark.parametrize(
    "line",
    [
        "\0",
        "5",
        "[" * 50_000,
        '{"record": "train", "update": 2, "loss": "low", "lr": 0.1}',
        '{"record": "train", "update": 2, "loss": 1.0}',
        '{"record": "train", "update": 0, "loss": 1.0, "lr": 0.1}',
        '{"record": "train", "update": 2, "loss": 1' + "0" * 999 + ', "lr": 0.1}',
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    log = write(tmp_path / "log.jsonl", end=f"{line}\n")
    with pytest.raises(NmtError) as error:
        read_curves(log)
    assert str(error.value) == f"{log}:7: damaged: not a record of training; remove the line"


def test_a_finished_run_can_be_drawn(train: Any, run: Path) -> None:
    done = train(run, "--plot")
    assert done.status == 0
    assert (run / "curves.svg").read_text().count("<polyline") == 3


def test_a_run_without_a_report_ends_as_it_does_otherwise(train: Any, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "--dry-run", "--plot")
    assert (done.status, done.out) == (0, f"{tmp_path / 'run'}\n")
    assert "no report to draw yet" in done.err

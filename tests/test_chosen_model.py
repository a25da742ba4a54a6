"""The model of a command: one where a second would be an ensemble, and by default the recipe's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.cli.options import Places, default_dataset, model_or_default, only_model
from nmt.training.config import TrainConfig


@pytest.mark.parametrize(
    "command",
    [
        ("align", "--source", "a", "--target", "b"),
        ("calibrate",),
        ("export", "--output", "exported"),
        ("rescore", "--source", "a"),
        ("score", "a", "--source", "b"),
        ("shortlist",),
    ],
    ids=lambda command: command[0],
)
def test_a_second_model_is_refused(command: tuple[str, ...], nmt: Callable[..., Any]) -> None:
    done = nmt(*command, "--model", "one", "--model", "two")
    assert (done.status, done.out) == (2, "")
    assert "--model takes one model here; run the command once for each" in done.err


def test_no_model_is_the_run_that_the_recipe_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert only_model(None) is only_model([]) is None
    assert (model_or_default([]), default_dataset()) == (Path("checkpoints"), Path("data-bin"))
    Path("nmt.yaml").write_text("train: {save_dir: work/run, data: work/data}\n")
    assert (model_or_default([]), default_dataset()) == (Path("work/run"), Path("work/data"))
    assert model_or_default([Path("run")]) == only_model([Path("run")]) == Path("run")


def test_the_defaults_are_those_of_the_recipe() -> None:
    config = TrainConfig()
    assert vars(Places()) == {"data": config.data, "save_dir": config.save_dir}


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("average-checkpoints", "--last", 2), "no/run"),
        (("calibrate", "--model", "other"), "no/data"),
        (("calibrate", "--data", "{dataset}"), "no/run"),
        (("explain", "lines"), "no/run"),
        (("export", "--output", "exported"), "no/run"),
        (("serve", "--port", 0), "no/run"),
        (("shortlist", "--model", "{run}"), "no/data"),
        (("shortlist",), "no/run"),
        (("translate",), "no/run"),
        (("translate", "--config", "other.yaml"), "another/run"),
        (("explain", "lines", "--config", "other.yaml"), "another/run"),
        (("serve", "--port", 0, "--set", "train.save_dir=set/run"), "set/run"),
    ],
)
def test_commands_take_run_and_dataset_of_the_recipe(
    command: tuple[object, ...],
    missing: str,
    trained: Path,
    dataset: Path,
    nmt: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nmt.yaml").write_text("train: {save_dir: no/run, data: no/data}\n")
    Path("other.yaml").write_text("train: {save_dir: another/run}\n")
    Path("lines").write_text("")
    words = [str(word).format(run=trained, dataset=dataset) for word in command]
    done = nmt(*words, stdin=Path("lines"))
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith(f"nmt: error: {missing}")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("{save_dri: x}", "train: unknown key 'save_dri'; did you mean 'save_dir'?"),
        ("{save_dir: [x]}", "train.save_dir: expected text, not ['x']"),
        ("{save_dir: null}", "train.save_dir: expected text, not nothing"),
    ],
)
def test_a_mistake_in_the_recipe_chooses_no_other_run(
    train: str,
    message: str,
    nmt: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nmt.yaml").write_text(f"train: {train}\n")
    done = nmt("export", "--output", "exported")
    assert (done.status, done.err.splitlines()) == (1, [f"nmt: error: nmt.yaml: {message}"])


def test_a_key_that_is_no_text_costs_one_line(
    nmt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nmt.yaml").write_text("train: {1: x}\n")
    done = nmt("translate", stdin=Path("nmt.yaml"))
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert "unknown key '1'" in done.err

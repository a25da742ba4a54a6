"""Commands that work with one model refuse a second, which would be an ensemble elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.cli.chosen_model import default_dataset, model_or_default, only_model


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
    assert "--model is one model here; run the command once for each" in done.err


def test_no_model_is_the_run_that_the_recipe_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert only_model(None) is only_model([]) is None
    assert (model_or_default([]), default_dataset()) == (Path("checkpoints"), Path("data-bin"))
    Path("nmt.yaml").write_text("train: {save_dir: work/run, data: work/data}\n")
    assert (model_or_default([]), default_dataset()) == (Path("work/run"), Path("work/data"))
    assert model_or_default([Path("run")]) == only_model([Path("run")]) == Path("run")


@pytest.mark.parametrize(
    "command",
    [
        ("average-checkpoints", "--last", 2),
        ("calibrate",),  # opens the dataset first
        ("explain", "lines"),
        ("export", "--output", "exported"),
        ("serve", "--port", 0),
        ("shortlist",),
        ("translate",),
    ],
    ids=lambda command: command[0],
)
def test_commands_take_run_and_dataset_of_the_recipe(
    command: tuple[object, ...],
    nmt: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nmt.yaml").write_text("train: {save_dir: no/such/run, data: no/such/dataset}\n")
    Path("lines").write_text("")
    done = nmt(*command, stdin=Path("lines"))
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("nmt: error: no/such/")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("{save_dri: x}", "nmt: error: train: unknown key 'save_dri'; did you mean 'save_dir'?"),
        ("{save_dir: [x]}", "nmt: error: train.save_dir: expected text, not ['x']"),
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
    assert (done.status, done.err.splitlines()) == (1, [message])

"""Weights & Biases is an extra; here a stand-in notes what it would be given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nmt.recipe.config import flatten
from nmt.runs import Run

Command = Callable[..., Any]
Calls = list[tuple[Any, ...]]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is called of wandb."""
    calls: Calls = []
    module: Any = ModuleType("wandb")
    run = SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append(("define", name, step_metric)),
        log=lambda values: calls.append(("log", values)),
        finish=lambda: calls.append(("finish",)),
    )
    module.run = run
    module.init = lambda **settings: calls.append(("init", settings)) or run
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def logged(run: Path) -> list[tuple[int, dict[str, float]]]:
    """The numbers of the records of the log, as loggers get them."""
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    hidden = {"record", "time", "update"}
    return [
        (
            record["update"],
            {f"{record['record']}/{key}": record[key] for key in record.keys() - hidden},
        )
        for record in records
    ]


def test_wandb_gets_the_log_and_the_recipe(train: Command, tmp_path: Path, wandb: Calls) -> None:
    run = tmp_path / "run"
    assert train(run, "--set", "train.wandb=true").status == 0
    settings = wandb[0][1]
    assert (settings["id"], settings["name"]) == (Run.open(run).identity, "run")
    assert settings["resume"] == "allow"
    assert settings["config"] == flatten(Run.open(run).recipe)
    assert wandb[1] == ("define", "*", "update")
    sent = [values for call, *rest in wandb if call == "log" for values in rest]
    assert sent == [{**numbers, "update": update} for update, numbers in logged(run)]
    assert wandb[-1] == ("finish",)


def test_a_logger_that_fails_costs_a_warning(train: Command, tmp_path: Path, wandb: Calls) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    sys.modules["wandb"].run.log = fail
    done = train(tmp_path / "run", "--set", "train.wandb=true")
    assert done.status == 0
    warning = (
        "nmt: warning: train.wandb: no route to host; "
        "no more records go there, and training continues"
    )
    assert done.err.splitlines().count(warning) == 1
    assert len(logged(tmp_path / "run")) == 6
    sys.modules["wandb"].init = fail  # type: ignore[attr-defined]
    done = train(tmp_path / "other", "--set", "train.wandb=true")
    assert done.status == 1
    assert done.err.splitlines()[-1] == (
        "nmt: error: train.wandb: no route to host; mend that, or leave it out: "
        "--set train.wandb=false"
    )


def test_a_dry_run_sends_nothing(train: Command, tmp_path: Path, wandb: Calls) -> None:
    assert train(tmp_path / "run", "--set", "train.wandb=true", "--dry-run").status == 0
    assert wandb == []


def test_without_the_package_the_remedy_is_named(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = train(tmp_path / "run", "--set", "train.wandb=true")
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith("; pip install 'nmt-toolkit[wandb]', or -e '.[wandb]' in a clone\n")

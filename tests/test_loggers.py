"""MLflow and Weights & Biases are extras; here stand-ins note what they would be given."""

from __future__ import annotations

import json
import re
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
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is called of MLflow, with a server that remembers the runs."""
    calls: Calls = []
    module: Any = ModuleType("mlflow")
    runs: dict[str, str] = {}

    def search_runs(filter_string: str, max_results: int, output_format: str) -> list[Any]:
        assert (max_results, output_format) == (1, "list")
        found = [run for tag, run in runs.items() if filter_string.endswith(f" = '{tag}'")]
        return [SimpleNamespace(info=SimpleNamespace(run_id=run)) for run in found]

    def start_run(run_id: str | None = None, run_name: str = "", tags: Any = None) -> None:
        calls.append(("start", run_id, run_name))
        runs.update({identity: "run-1" for identity in (tags or {}).values()})

    module.search_runs, module.start_run = search_runs, start_run
    module.log_params = lambda values: calls.append(("params", values))
    module.log_metrics = lambda values, step: calls.append((step, values))
    module.end_run = lambda: calls.append(("end",))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


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


def test_mlflow_gets_the_log_and_the_recipe_in_one_run(
    train: Command, tmp_path: Path, mlflow: Calls
) -> None:
    run = tmp_path / "run"
    flags = ("--set", "train.mlflow=true")
    assert train(run, *flags, "--max-updates", 4).status == 0
    assert train(run, *flags).status == 0
    starts = [call for call in mlflow if call[0] == "start"]
    assert starts == [("start", None, "run"), ("start", "run-1", "")]
    (recipe,) = (call[1] for call in mlflow if call[0] == "params")
    assert recipe == flatten({**Run.open(run).recipe}) | {"train.max_updates": 4}
    assert [call for call in mlflow if type(call[0]) is int] == logged(run)
    assert mlflow[-1] == ("end",)


def test_mlflow_gets_the_metrics_whose_names_it_refuses(
    train: Command, tmp_path: Path, mlflow: Calls
) -> None:
    flags = ("--set", "train.mlflow=true", "--set", "train.valid_metrics=[chrf, chrf++]")
    assert train(tmp_path / "run", *flags).status == 0
    names = {name for call in mlflow if type(call[0]) is int for name in call[1]}
    assert {"validation/chrf", "validation/chrfpp", "train/loss"} <= names
    assert all(re.fullmatch(r"[\w\-. :/]+", name, re.ASCII) for name in names)


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


def test_a_logger_that_fails_costs_a_warning(train: Command, tmp_path: Path, mlflow: Calls) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    sys.modules["mlflow"].log_metrics = fail  # type: ignore[attr-defined]
    done = train(tmp_path / "run", "--set", "train.mlflow=true")
    assert done.status == 0
    warning = (
        "nmt: warning: train.mlflow: no route to host; "
        "no more records go there, and training continues"
    )
    assert done.err.splitlines().count(warning) == 1
    assert len(logged(tmp_path / "run")) == 6
    sys.modules["mlflow"].start_run = fail  # type: ignore[attr-defined]
    done = train(tmp_path / "other", "--set", "train.mlflow=true")
    assert done.status == 1
    assert done.err.splitlines()[-1] == (
        "nmt: error: train.mlflow: no route to host; mend that, or leave it out: "
        "--set train.mlflow=false"
    )


def test_a_dry_run_sends_nothing(train: Command, tmp_path: Path, wandb: Calls) -> None:
    assert train(tmp_path / "run", "--set", "train.wandb=true", "--dry-run").status == 0
    assert wandb == []


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_without_the_package_the_remedy_is_named(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    done = train(tmp_path / "run", "--set", f"train.{name}=true")
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith(f"; pip install 'nmt-toolkit[{name}]', or -e '.[{name}]' in a clone\n")

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Command

from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.training.config import TrainConfig

DIRECTORY = Path(__file__).parents[1] / "examples/comparisons"
PLANS = sorted((DIRECTORY / "plans").glob("*.yaml"))
spec = importlib.util.spec_from_file_location("compare_systems", DIRECTORY / "compare.py")
compare: ModuleType = importlib.util.module_from_spec(spec)
sys.modules["compare_systems"] = compare
spec.loader.exec_module(compare)


def comparison(work: Path, **plan: Any) -> Any:
    rows = {"one": compare.Row(), "two": compare.Row(set={"train.schedule.lr": 0.1})}
    plan = {"recipe": "multi30k.yaml", "core_minutes": 2, "seeds": 2, "rows": rows} | plan
    return compare.Comparison(
        plan=compare.Plan(**plan),
        recipe=DIRECTORY / "multi30k.yaml",
        data=work / "data",
        work=work / "work",
    )


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_row_of_a_plan_can_be_built_and_differs_from_the_others(path: Path) -> None:
    plan = compare.read_plan(path)
    of_plan = compare.Comparison(plan, path.parent / plan.recipe, Path("data"), Path("work"))
    built = []
    for row in plan.rows:
        recipe = of_plan._recipe(row)
        parts = [build(ModelConfig, recipe["model"], "model")]
        parts.append(build(TrainConfig, recipe["train"], "train"))
        assert parts not in built
        built.append(parts)


def test_the_readme_has_every_key_of_a_plan_and_an_example(tmp_path: Path) -> None:
    text = (DIRECTORY / "README.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    assert {*keys} == {field.name for kind in (compare.Plan, compare.Row) for field in fields(kind)}
    [example] = re.findall("```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(example)
    assert list(compare.read_plan(tmp_path / "mine.yaml").rows) == ["transformer", "mine", "rotary"]


def test_a_change_has_the_standard_error_of_a_difference_of_means() -> None:
    base = [{"bleu": 30.0}, {"bleu": 32.0}]
    assert compare.mean([30.0, 32.0]) == "31.00 ± 1.00"
    assert compare.difference([28.0, 28.0], base) == "-3.00 ± 1.00"


def test_rows_get_equal_core_minutes_by_their_least_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {"one": [0.75, 0.5, 1.0], "two": [0.25, 0.5, 0.5]}  # the machine was not always free
    of_two = comparison(tmp_path)
    monkeypatch.setattr(compare.Comparison, "_cost", lambda self, row: costs[row].pop(0))
    for _ in range(2):  # nothing is measured twice
        of_two._measure_costs(["one", "two"])
    assert [of_two.updates(row) for row in ("one", "two")] == [240, 480]


def test_a_row_that_is_added_costs_its_ratio_to_the_first_row_at_that_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {"one": [0.5, 0.6, 0.5, 1.0, 1.2, 1.0], "two": [0.8, 0.8, 1.5]}  # slower since
    of_two = comparison(tmp_path)
    monkeypatch.setattr(compare.Comparison, "_cost", lambda self, row: costs[row].pop(0))
    of_two._measure_costs(["one"])
    of_two._measure_costs(["one", "two"])
    assert [of_two.updates(row) for row in ("one", "two")] == [240, 300]


def test_an_interrupted_timing_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_two = comparison(tmp_path)
    left = tmp_path / "work/one/timed-25/last"
    left.mkdir(parents=True)
    monkeypatch.setattr(compare, "NMT", (sys.executable, "-c", ""))
    of_two._time("one", 25)
    assert not left.exists()


def test_a_timing_leaves_its_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makes_a_run = "import os, sys; os.makedirs(sys.argv[3].removeprefix('--save-dir=') + '/last')"
    monkeypatch.setattr(compare, "NMT", (sys.executable, "-c", makes_a_run))
    comparison(tmp_path)._time("one", 25)
    assert [path.name for path in (tmp_path / "work/one").iterdir()] == ["timed-25.log"]


LAB = """
from dataclasses import dataclass

from nmt.models import architectures
from nmt.training.losses.token import LabelSmoothedCrossEntropy, losses

architectures.add("lab_model", architectures["transformer_tiny"])


@losses.register("lab_loss")
@dataclass(frozen=True, kw_only=True)
class LabLoss(LabelSmoothedCrossEntropy):
    pass
"""


@pytest.mark.full
def test_a_plugin_beside_the_common_recipe_is_compared(
    tmp_path: Path, recipe: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mylab.py").write_text(LAB)
    common = tmp_path / "lab.yaml"
    common.write_text(f"plugins: [mylab]\n{recipe.read_text()}")
    rows = {"mine": compare.Row(set={"model.arch": "lab_model", "train.loss": "lab_loss"})}
    plan = compare.Plan(recipe="", core_minutes=1, rows=rows, rates=(1.0,), seeds=1, average=1)
    of_mine = compare.Comparison(plan, common, dataset, tmp_path / "work")
    monkeypatch.setattr(compare.Comparison, "_cost", lambda self, row: 60.0)  # one update
    monkeypatch.delenv("PYTHONPATH", raising=False)
    [scores] = of_mine.run(["mine"], "valid")["mine"]
    assert scores.keys() == {"bleu", "chrf", "loss"}


@pytest.mark.full
def test_an_interruption_ends_the_trainings_with_one_line(tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\necho $$\nexec sleep 90\n")
    stub.chmod(0o755)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"recipe: {DIRECTORY / 'multi30k.yaml'}\ncore_minutes: 1\nrows: {{one:, two:}}\n"
    )
    script = (
        f"import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.executable, path = {str(stub)!r}, {str(DIRECTORY / 'compare.py')!r}\n"
        f"sys.argv = [path, {str(plan)!r}, '--data=x', '--work=work', '--jobs=2']\n"
        "runpy.run_path(path, run_name='__main__')"
    )
    logs = [tmp_path / f"work/{row}/timed-25.log" for row in ("one", "two")]
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not all(log.exists() and log.read_text() for log in logs):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    assert messages.splitlines() == [
        "compare.py: measuring costs, round 1 of 3: one, two",
        "compare.py: interrupted; the same command resumes",
    ]
    for log in logs:
        with pytest.raises(ProcessLookupError):
            os.kill(int(log.read_text()), 0)


def test_published_changes_are_from_the_first_row_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {"base": 25.0, "one": 24.0, "two": 24.5}
    rows = {name: compare.Row(published=value) for name, value in published.items()}
    of_two = comparison(tmp_path, rows=rows, rates=(1.0,))
    monkeypatch.setattr(compare.Comparison, "updates", lambda self, row: 3)
    scores = [{"bleu": 30.0, "chrf": 50.0, "loss": 2.0}] * 2
    lines = compare.table(of_two, {"one": scores, "two": [*scores]}).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:]] == [" |", "+0.5 |"]


def test_the_learning_rate_with_the_lowest_validation_loss_is_chosen_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def nmt(_: Any, *arguments: object, log: Path) -> str:
        words = list(map(str, arguments))
        commands.append(words)
        settings = dict(word[6:].split("=") for word in words if word.startswith("--set="))
        if words[0] == "train":
            run = Path(words[2].removeprefix("--save-dir="))
            run.mkdir(parents=True, exist_ok=True)
            update, lr = (settings[f"train.{key}"] for key in ("max_updates", "schedule.lr"))
            loss = abs(float(lr) - 0.004) + 1 / int(update)
            record = {"record": "validation", "update": int(update), "loss": loss}
            with (run / "log.jsonl").open("a") as lines:
                lines.write(f"{json.dumps(record)}\n")
        elif words[0] == "average-checkpoints":
            Path(words[words.index("--output") + 1]).mkdir()
        return '{"metric": "bleu", "value": 12.5}\n{"metric": "chrf", "value": 40}\n'

    monkeypatch.setattr(compare.Comparison, "_nmt", nmt)
    monkeypatch.setattr(compare.Comparison, "_time", lambda self, row, count: count)
    monkeypatch.setattr(compare.Comparison, "_language", lambda self, side: side)
    of_one = comparison(tmp_path, rows={"one": compare.Row()})
    for _ in range(2):  # nothing is done twice
        results = of_one.run(["one"], "valid")
    assert capsys.readouterr().err.splitlines() == [
        *(f"compare.py: measuring costs, round {number} of 3: one" for number in (1, 2, 3)),
        *(
            f"compare.py: training: one, learning rate {rate}, seed {seed}, to update {update}"
            for rate, seed, update in (
                ("0.001", 1, 40),
                ("0.002", 1, 40),
                ("0.004", 1, 40),
                ("0.004", 1, 120),
                ("0.004", 2, 120),
            )
        ),
        *(f"compare.py: translating and scoring: one, seed {seed}, valid" for seed in (1, 2)),
    ]
    assert [words[0] for words in commands] == [
        *["train"] * 3,
        *["train", "average-checkpoints"] * 2,
        *["translate", "score"] * 2,
    ]
    resumed = commands[3]  # the winner of the grid is the first seed
    assert resumed[2] == commands[2][2]
    assert resumed[2].endswith("one/lr-2/seed-1/run")
    assert {"--set=train.max_updates=120", "--set=train.schedule.lr=0.004"} <= {*resumed}
    assert compare.table(of_one, results).splitlines()[2] == (
        "| one | 12.50 ± 0.00 |  | 40.00 ± 0.00 | 0.008 ± 0.000 | 120 | 0.004 |"
    )


def test_results_of_other_settings_are_not_used_again(tmp_path: Path) -> None:
    comparison(tmp_path)._check_settings("one")
    comparison(tmp_path, seeds=5)._check_settings("one")
    with pytest.raises(SystemExit, match="one was made with other settings; take another --work"):
        comparison(tmp_path, core_minutes=3)._check_settings("one")
    changed = {"one": compare.Row(set={"model.d_ff": 64})}
    with pytest.raises(SystemExit, match="made with other settings"):
        comparison(tmp_path, rows=changed)._check_settings("one")


def test_an_unknown_row_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(DIRECTORY / "plans/systems.yaml")
    monkeypatch.setattr(sys, "argv", ["compare.py", plan, "--data", "data", "--rows", "lstm"])
    with pytest.raises(SystemExit):
        compare.main()
    assert "no row 'lstm'" in capsys.readouterr().err


@pytest.mark.full
def test_a_comparison_ends_in_a_table(
    tmp_path: Path,
    recipe: Path,
    dataset: Path,
    nmt: Command,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: Any, *arguments: object, log: Path) -> str:
        done = nmt(*arguments)
        assert done.status == 0, done.err
        return done.out

    monkeypatch.setattr(compare.Comparison, "_nmt", run)
    monkeypatch.setattr(compare.Comparison, "_time", lambda self, row, count: count)
    in_turn = lambda self, work, items: list(map(work, items))  # noqa: E731
    monkeypatch.setattr(compare.Comparison, "_each", in_turn)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"recipe: {recipe}\ncore_minutes: 0.1\nseeds: 2\nrates: [1, 2]\naverage: 2\n"
        "rows:\n  one:\n  two: {set: {model.d_ff: 16}, published: 3.5}\n"
        "translations: {beam: --model averaged --strategy beam, last: --model last}\n"
    )
    words = ["compare.py", plan, "--data", dataset, "--work", tmp_path / "work", "--jobs", 1]
    monkeypatch.setattr(
        sys, "argv", [*map(str, words), "--test", "--picture", str(tmp_path / "curves.svg")]
    )
    compare.main()
    valid, test = capsys.readouterr().out.split("test:\n")
    for text in (valid, test):
        lines = [line.split("|") for line in text.splitlines() if line.startswith("| ")][2:]
        names = [cells[1].strip() for cells in lines]
        assert names == ["one beam", "one last", "two beam", "two last"]
        assert {cells[6].strip() for cells in lines} == {"6"}
    picture = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert all(label in picture for label in ("core-minutes", "validation loss", "one", "two"))

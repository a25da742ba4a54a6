"""What a plugin brings works in every command, told once; a stranger's is not imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import nmt as package
from nmt.errors import NmtError

Command = Callable[..., Any]

PLUGIN = """
from dataclasses import dataclass

from nmt.models import architectures
from nmt.training.losses import CrossEntropy, losses

architectures.add("mine", architectures["transformer_tiny"])


@losses.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(CrossEntropy):
    "A loss of one's own."
"""

PAYLOAD = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


def test_a_plugin_beside_the_recipe_is_found_by_every_command(
    recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "my_parts.py").write_text(PLUGIN)
    text = recipe.read_text().replace("transformer_tiny", "mine")
    text = text.replace("train:\n", "train:\n  loss: mine\n")
    (tmp_path / "sub" / "nmt.yaml").write_text(f"plugins: [my_parts]\n{text}")

    def nmt(*arguments: object, cwd: Path = tmp_path) -> str:
        done = run_apart(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    nmt("train", "--config", "sub/nmt.yaml", "--data", dataset, "--save-dir", "run")
    translated = nmt("translate", "--config", "sub/nmt.yaml", "--model", "run")
    assert translated.count("\n") == 1
    best = ("average-checkpoints", "--run", tmp_path / "run", "--best", 2, "--plugin", "my_parts")
    nmt(*best, cwd=tmp_path / "sub")


def run_apart(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "nmt", *map(str, arguments)],
        input="one two\n",
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(params=["a run", "a run with a recipe beside it"])
def strange(
    request: pytest.FixtureRequest, run: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A stranger's run with a payload, as the current directory; it leaves a mark when it runs."""
    resolved = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(yaml.safe_dump(resolved | {"plugins": ["payload"]}))
    (run / "payload.py").write_text(PAYLOAD)
    if request.param != "a run":
        (run / "nmt.yaml").write_text("plugins: [payload]\n")
    for side in ("en", "de"):
        shutil.copy(corpus / f"test.{side}", run / f"text.{side}")
    (run / "list").write_text("0 ||| eins ||| LogProbability= -1.0 Length= 2 ||| -1.0\n")
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield run
    sys.modules.pop("payload", None)


LOADING = {
    "translate": "translate --model . text.en",
    "translate with an ensemble": "translate --model . --model last text.en",
    "translate with a checkpoint": "translate --model best text.en",
    "export": "export --model . --output ../exported",
    "score --model": "score --model . --source text.en text.de",
    "rescore": "rescore --model . --source text.en list",
    "train --init-from": "train --config {recipe} --data {dataset} --save-dir new --init-from .",
    "average-checkpoints --best": "average-checkpoints --run . --best 2",
}
"""Commands that need the parts that the run names."""

READING = {
    "shortlist": "shortlist --data {dataset} --model .",
    "inspect": "inspect . --verify",
    "average-checkpoints --last": "average-checkpoints --run . --last 2",
    "average-checkpoints": "average-checkpoints last best",
}
"""Commands that do without."""


@pytest.mark.parametrize("line", LOADING.values(), ids=LOADING)
def test_no_command_runs_the_code_of_a_run_without_consent(
    line: str, strange: Path, nmt: Command, recipe: Path, dataset: Path
) -> None:
    command = line.format(recipe=recipe, dataset=dataset).split()
    done = nmt(*command)
    assert done.status == 1
    assert done.err.splitlines()[-1].startswith("nmt: error: ")
    assert "payload" in done.err
    assert "--trust-plugins" in done.err
    assert not (strange / "ran").exists()
    allowed = nmt(*command, "--plugin", "payload")
    assert allowed.status == 0, allowed.err
    assert (strange / "ran").exists()


@pytest.mark.parametrize("line", READING.values(), ids=READING)
def test_commands_that_need_no_code_of_a_run_do_without_it(
    line: str, strange: Path, nmt: Command, dataset: Path
) -> None:
    done = nmt(*line.format(dataset=dataset).split())
    assert done.status == 0, done.err
    assert not (strange / "ran").exists()


@pytest.mark.parametrize("line", ["preprocess", "train", "score --reference text.de text.de"])
def test_no_command_runs_the_code_beside_a_recipe_that_was_found(
    line: str, strange: Path, nmt: Command
) -> None:
    (strange / "nmt.yaml").write_text("plugins: [payload]\n")
    done = nmt(*line.split())
    assert done.status == 1
    assert done.err.startswith("nmt: error: nmt.yaml: names Python code to import: payload; it was")
    assert not (strange / "ran").exists()


def test_python_runs_no_code_of_a_run_without_consent(strange: Path) -> None:
    with pytest.raises(NmtError) as error:
        package.Translator(strange)
    assert str(error.value) == (
        f"{strange}: loading this run would import Python code: payload; if you trust it, give "
        "--trust-plugins (or NMT_TRUST_PLUGINS=1, or trust_plugins=True), or name modules of your "
        "own with --plugin payload"
    )
    assert not (strange / "ran").exists()


@pytest.mark.parametrize("strange", ["a run"], indirect=True)
def test_no_file_of_the_current_directory_passes_for_a_library(strange: Path) -> None:
    for name in ("typer", "sacremoses", "torch", "yaml"):
        (strange / f"{name}.py").write_text(PAYLOAD)
    done = run_apart("translate", "--model", ".", cwd=strange)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "payload" in done.stderr
    assert not (strange / "ran").exists()


@pytest.mark.parametrize("value", [5, [""], [".x"]])
def test_plugins_of_a_run_that_are_no_modules_cost_one_line(
    value: object, run: Path, nmt: Command
) -> None:
    resolved = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(json.dumps(resolved | {"plugins": value}))
    done = nmt("translate", "--model", run, "--trust-plugins", stdin=run / "log.jsonl")
    assert done.status == 1
    assert done.err == (
        f"nmt: error: {run / 'recipe.yaml'}: plugins: expected a list of modules, such as "
        f"[mymodel], not {value!r}\n"
    )

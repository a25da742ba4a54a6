"""What a plugin brings works in every command, told once; a stranger's is not imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nmt as package
from nmt.errors import NmtError
from nmt.inference.engines import recipe_of
from nmt.runs.recipe import read_recipe, write_plugins, write_recipe

Done = subprocess.CompletedProcess[str]
Program = Callable[..., Done]

PLUGIN = """
from dataclasses import dataclass

from my_layers import CrossEntropy
from nmt.models import architectures
from nmt.training.losses.token import losses

architectures.add("mine", architectures["transformer_tiny"])


@losses.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(CrossEntropy):
    "A loss of one's own."
"""

FAULTY = """
from dataclasses import dataclass
from nmt.models import architectures

Tiny = type(architectures["transformer_tiny"])

@dataclass(frozen=True, kw_only=True)
class Faulty(Tiny):
    def build(self, *sizes):
        return self.widht

architectures.add("faulty", Faulty())
"""

PAYLOAD = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


@pytest.fixture
def program(programs: Path, tmp_path: Path) -> Program:
    """Runs ``nmt ARGUMENTS`` in a process of its own, below the test's directory."""

    def run(line: str, directory: str = ".", **environment: str) -> Done:
        return subprocess.run(
            [programs / "nmt", *line.split()],
            input="one two\n",
            cwd=tmp_path / directory,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def mine(tmp_path: Path, recipe: Path, dataset: Path, program: Program) -> Path:
    """A directory with a recipe, its plugin in two files, and a run that was trained with it."""
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "my_parts.py").write_text(PLUGIN)
    (directory / "my_layers.py").write_text("from nmt.training.losses.token import CrossEntropy\n")
    text = recipe.read_text().replace("transformer_tiny", "mine")
    text = text.replace("train:\n", f"train:\n  data: {dataset}\n  loss: mine\n")
    (directory / "nmt.yaml").write_text(f"plugins: [my_parts]\n{text}")
    done = program("train --config mine/nmt.yaml --save-dir mine/run")
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.full
def test_a_plugin_beside_the_recipe_is_found_by_every_command(mine: Path, program: Program) -> None:
    for line, directory in (
        ("train --config mine/nmt.yaml --save-dir mine/run --max-updates 8", "."),
        ("translate --config mine/nmt.yaml --model mine/run", "."),
        ("translate --plugin my_parts --model run", "mine"),
        ("average-checkpoints --run run --best 2 --plugin my_parts", "mine"),
    ):
        done = program(line, directory)
        assert done.returncode == 0, done.stderr
        assert "my_parts" not in done.stderr


@pytest.mark.full
def test_a_run_that_was_moved_brings_its_plugin_to_those_who_trust_it(
    mine: Path, tmp_path: Path, program: Program
) -> None:
    (mine / "run").rename(tmp_path / "moved")
    shutil.rmtree(mine)
    for line in (
        "translate --model moved",
        "score --model moved --source moved/log.jsonl moved/log.jsonl",
        "average-checkpoints --run moved --best 2 --output averaged",
    ):
        refused, trusted = program(line), program(f"{line} --trust-plugins")
        assert refused.returncode == 1
        assert refused.stderr == (
            "nmt: error: moved: loading this run would import Python code: my_parts from "
            "moved/plugins; if you trust it, give --trust-plugins (in Python trust_plugins=True; "
            "or NMT_TRUST_PLUGINS=1), or name modules of your own with --plugin my_parts (in "
            "Python import my_parts)\n"
        )
        assert trusted.returncode == 0, trusted.stderr
    of_average = program("translate --model averaged", NMT_TRUST_PLUGINS="1")
    assert of_average.returncode == 0, of_average.stderr
    assert sorted(path.name for path in (tmp_path / "averaged" / "plugins").iterdir()) == [
        "my_layers.py",
        "my_parts.py",
        "plugins.json",
    ]


@pytest.mark.full
def test_a_copy_that_was_changed_is_refused(mine: Path, tmp_path: Path, program: Program) -> None:
    copy = mine / "run" / "plugins" / "my_layers.py"
    copy.write_text(copy.read_text().replace("C", "c"))
    for line in ("translate --model mine/run --trust-plugins", "inspect mine/run --verify"):
        done = program(line)
        assert done.returncode == 1
        assert done.stderr == (
            "nmt: error: mine/run/plugins/my_layers.py: the content has changed since it was "
            "written; restore it, or remove the directory and give modules of your own with "
            "--plugin\n"
        )
    assert "\nplugins, which run when they are trusted: my_parts\n" in done.stdout


@pytest.mark.full
def test_training_goes_on_with_ones_own_plugin_and_keeps_a_copy_of_it(
    mine: Path, program: Program
) -> None:
    own, copy = mine / "my_parts.py", mine / "run" / "plugins" / "my_parts.py"
    own.write_text(f"{PLUGIN}# changed\n")
    for _ in range(2):  # the first time exports the run
        translated = program("translate --plugin my_parts --model run", "mine")
        assert translated.returncode == 0
        assert re.match(
            r"nmt: warning: \S*run: my_parts.py: differs from the copy in \S*run/plugins, "
            r"with which the run was trained\n",
            translated.stderr,
        )
    assert copy.read_text() == PLUGIN
    resumed = program("train --config nmt.yaml --save-dir run --max-updates 8", "mine")
    assert resumed.returncode == 0
    assert resumed.stderr.startswith(
        "nmt: warning: my_parts.py: differs from the copy with which run was trained so far; "
        "training continues with yours, and the run keeps a copy of it instead\n"
    )
    assert copy.read_text() == own.read_text()


def test_a_model_of_ones_own_that_cannot_be_built_costs_one_line_and_leaves_no_run(
    tmp_path: Path, recipe: Path, dataset: Path, program: Program
) -> None:
    (tmp_path / "my_model.py").write_text(FAULTY)
    done = program(
        f"train --config {recipe} --data {dataset} --plugin my_model --arch faulty --save-dir new"
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"nmt: error: no such model can be built: {tmp_path / 'my_model.py'}, line 10: "
        "AttributeError: 'Faulty' object has no attribute 'widht'; correct the plugin, or the "
        "sizes in the recipe's section model\n"
    )
    assert not (tmp_path / "new").exists()


@pytest.fixture
def strange(run: Path, corpus: Path) -> Path:
    """A stranger's run with a payload, as it is and as a copy; it leaves a mark when it runs."""
    resolved = read_recipe(run)
    write_recipe(run, resolved | {"plugins": ["my_payload"]})
    write_plugins(run, {"my_payload.py": PAYLOAD.encode()})
    (run / "my_payload.py").write_text(PAYLOAD)
    for side in ("en", "de"):
        shutil.copy(corpus / f"test.{side}", run / f"text.{side}")
    (run / "list").write_text("0 ||| eins ||| LogProbability= -1.0 Length= 2 ||| -1.0\n")
    return run


def has_run(strange: Path) -> bool:
    return any(strange.rglob("ran"))


LOADING = {
    "translate": "translate --model . text.en",
    "translate with an ensemble": "translate --model . --model last text.en",
    "translate with a checkpoint": "translate --model best text.en",
    "export": "export --model . --output ../exported",
    "score --model": "score --model . --source text.en text.de",
    "rescore": "rescore --model . --source text.en list",
    "align": "align --model . --source text.en --target text.de",
    "train --init-from": "train --config {recipe} --data {dataset} --save-dir new --init-from .",
    "average-checkpoints --best": "average-checkpoints --run . --best 2",
}
"""Commands that need the parts that the run names."""

READING = {
    "shortlist": "shortlist --data {dataset} --model .",
    "inspect": "inspect . --verify",
    "average-checkpoints --last": "average-checkpoints --run . --last 2",
    "average-checkpoints": "average-checkpoints last",
}
"""Commands that do without."""


@pytest.mark.parametrize("line", LOADING.values(), ids=LOADING)
def test_no_command_runs_the_code_of_a_run_without_consent(
    line: str, strange: Path, program: Program, recipe: Path, dataset: Path
) -> None:
    command = line.format(recipe=recipe, dataset=dataset)
    done = program(command, "run")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("nmt: error: ")
    assert "my_payload" in done.stderr
    assert "--trust-plugins" in done.stderr
    assert not has_run(strange)
    allowed = program(f"{command} --trust-plugins", "run")
    assert allowed.returncode == 0, allowed.stderr
    assert has_run(strange)


@pytest.mark.parametrize("line", READING.values(), ids=READING)
def test_commands_that_need_no_code_of_a_run_do_without_it(
    line: str, strange: Path, program: Program, dataset: Path
) -> None:
    done = program(line.format(dataset=dataset), "run")
    assert done.returncode == 0, done.stderr
    assert not has_run(strange)


@pytest.mark.parametrize(
    "line", ["preprocess", "train", "score --reference text.de text.de", "translate --model ."]
)
def test_no_command_runs_the_code_beside_a_recipe_that_was_found(
    line: str, strange: Path, program: Program
) -> None:
    (strange / "nmt.yaml").write_text("plugins: [my_payload]\n")
    done = program(line, "run")
    assert done.returncode == 1
    assert done.stderr.startswith("nmt: error: nmt.yaml: names Python code to import: my_payload; ")
    assert not has_run(strange)


def test_python_runs_no_code_of_a_run_without_consent(
    strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    with pytest.raises(NmtError, match=r"this run would import Python code: my_payload from "):
        package.Translator(strange)
    with pytest.raises(NmtError, match=r"this run would import Python code: my_payload from "):
        recipe_of(strange)
    assert not has_run(strange)
    package.Translator(strange, trust_plugins=True)
    del sys.modules["my_payload"]
    assert has_run(strange)


@pytest.mark.full
def test_no_file_of_the_current_directory_passes_for_a_library(strange: Path) -> None:
    for name in ("typer", "sacremoses", "torch", "yaml"):
        (strange / f"{name}.py").write_text(PAYLOAD)
    done = subprocess.run(
        [sys.executable, "-m", "nmt", "translate", "--model", "."],
        cwd=strange,
        env=os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "my_payload" in done.stderr
    assert not has_run(strange)


@pytest.mark.parametrize("value", [5, [""], [".x"]])
def test_plugins_of_a_run_that_are_no_modules_cost_one_line(
    value: object, run: Path, program: Program
) -> None:
    resolved = read_recipe(run)
    write_recipe(run, resolved | {"plugins": value})
    done = program("translate --model run --trust-plugins")
    assert done.returncode == 1
    assert done.stderr == (
        "nmt: error: run/recipe.yaml: plugins: expected a list of modules, such as [mymodel], not "
        f"{value!r}\n"
    )

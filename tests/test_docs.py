"""What the documents say of commands, recipes and files is so."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import typer

import nmt.training
from nmt.cli.app import app
from nmt.training.reporting.report import Record
from nmt.training.trainer import TrainerState

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for path in sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    )
    if "work" not in path.relative_to(ROOT).parts
]
SCRIPTS = sorted(ROOT.glob("examples/*/*.sh"))
FORMATS = (ROOT / "docs/formats.md").read_text(encoding="utf-8")


def commands(text: str) -> Iterator[list[str]]:
    """The words of every line of a script that begins with ``nmt``, or runs it with torchrun."""
    for line in text.replace("\\\n", " ").splitlines():
        if call := re.match(r"\s*(?:\$ )?(?:nmt|torchrun .* -m nmt) (?=[a-z-]+( |$))(.*)", line):
            yield shlex.split(call[2], comments=True)


def shell(document: Path) -> str:
    """The shell blocks of a document, without commands that are shown with their error."""
    text = document.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.M | re.S))
    return re.sub(r"^\$ .*\nnmt: error: ", "", blocks, flags=re.M)


def test_every_command_that_is_shown_exists_with_its_flags() -> None:
    known = {
        name: {flag for parameter in command.params for flag in parameter.opts}
        for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    }
    unknown = []
    for path in [*DOCUMENTS, *SCRIPTS]:
        script = path.read_text(encoding="utf-8") if path.suffix == ".sh" else shell(path)
        for name, *words in commands(script):
            flags = {word.partition("=")[0] for word in words if re.match(r"--?\w", word)}
            if flags - known.get(name, set()) or name not in known:
                unknown.append(f"{path.relative_to(ROOT)}: nmt {name} {' '.join(words)}")
    assert unknown == []


def test_commands_are_found_in_shell_text() -> None:
    text = (
        "nmt train --lr 1 \\\n  --seed 2  # x\n$ nmt score -\ntorchrun -n 2 -m nmt train\nnmt: no"
    )
    found = [["train", "--lr", "1", "--seed", "2"], ["score", "-"], ["train"]]
    assert list(commands(text)) == found


def test_commands_of_the_hub_that_are_shown_reach_the_network(tmp_path: Path) -> None:
    """A command or a flag that `hf` does not know would end it earlier."""
    pytest.importorskip("huggingface_hub")
    (tmp_path / "exported").mkdir()
    texts = (path.read_text(encoding="utf-8") for path in DOCUMENTS)
    calls = [call for text in texts for call in re.findall(r"^hf (.*)$", text, re.M)]
    assert len(calls) >= 2
    for call in calls:
        ran = subprocess.run(
            [Path(sys.executable).with_name("hf"), *shlex.split(call)],
            cwd=tmp_path,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "offline mode is enabled" in ran.stderr, ran.stderr


def test_extras_are_asked_for_by_the_name_of_the_distribution() -> None:
    """`pip install nmt` would install another project."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (name,) = re.findall(r'^name = "(.*)"$', project, re.M)
    (table,) = re.findall(r"^\[project.optional-dependencies\]\n(.*?)^\[", project, re.M | re.S)
    extras = set(re.findall(r"^(\w+) = ", table, re.M))
    texts = [ROOT / "pyproject.toml", *DOCUMENTS]
    texts += [path for part in ("nmt", "benchmarks") for path in (ROOT / part).rglob("*.py")]
    asked = [
        (asked, extra)
        for path in texts
        for asked, some in re.findall(
            r"\b(nmt[\w-]*)\[([a-z0-9,]+)\]", path.read_text(encoding="utf-8")
        )
        for extra in some.split(",")
    ]
    assert len(asked) > 10
    assert [it for it in asked if it[0] != name or it[1] not in extras] == []
    assert name != "nmt"


@pytest.mark.parametrize(
    ("script", "target"),
    [
        ("docs/make_recipe_reference.py", "docs/recipe.md"),
        ("docs/make_recipe_keys.py", "nmt/recipe/keys.json"),
    ],
)
def test_a_generated_file_is_what_its_script_writes(
    script: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    written = StringIO()
    with redirect_stdout(written):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    remedy = f"run: python {script} > {target}"
    assert (ROOT / target).read_text(encoding="utf-8") == written.getvalue(), remedy


@pytest.mark.parametrize("name", ["transformer_base", "gnmt", "sgd"])
def test_the_recipe_reference_shows_the_defaults_of_a_class(name: str) -> None:
    reference = (ROOT / "docs/recipe.md").read_text(encoding="utf-8")
    assert f"The defaults below are those of `{name}`;" in reference


def test_every_file_of_a_run_is_documented(trained: Path) -> None:
    names = {re.sub(r"update_\d+", "update_0001000", path.name) for path in trained.iterdir()}
    names |= {path.name for path in (trained / "last").iterdir()}
    assert {name for name in names if not re.search(rf"`{re.escape(name)}/?`", FORMATS)} == set()


def test_every_key_of_a_run_is_documented(trained: Path) -> None:
    keys = {*json.loads((trained / "run.json").read_bytes())}
    keys |= {*json.loads((trained / "last/checkpoint.json").read_bytes())}
    keys |= {field.name for field in dataclasses.fields(TrainerState)}
    assert {key for key in keys if f"`{key}`" not in FORMATS} == set()


def test_every_record_of_the_log_is_documented(trained: Path) -> None:
    keys = {field.name for field in dataclasses.fields(Record)}
    for line in (trained / "log.jsonl").read_text(encoding="utf-8").splitlines():
        keys |= {*json.loads(line)}
    for source in Path(nmt.training.__path__[0]).rglob("*.py"):
        keys |= {*re.findall(r"\.record\(\s*\"(\w+)\"", source.read_text(encoding="utf-8"))}
    assert {"train", "validation", "resumed"} < keys
    assert {key for key in keys if f"`{key}`" not in FORMATS} == set()

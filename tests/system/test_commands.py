"""The commands, whole: their help, the examples in it, and the road from text to translations."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from for_each import for_each

from nmt.cli.app import app
from nmt.runs import Run

Shell = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture
def here(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a corpus, a text to translate, its reference and a list of translations."""
    shutil.copytree(corpus, tmp_path / "corpus")
    entries = (f"{line} ||| eins ||| LogProbability= -1.0 ||| -1.0\n" for line in range(10))
    (tmp_path / "list.txt").write_text("".join(entries))
    shutil.copy(corpus / "test.en", tmp_path / "input.txt")
    shutil.copy(corpus / "test.de", tmp_path / "test.de")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(here: Path, programs: Path) -> Shell:
    """Runs a line as a user types it."""
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, shell=True, cwd=here, env=environment, capture_output=True, text=True
        )

    return run


def examples(help_: str) -> list[str]:
    """The commands that end a help: lines that begin with the name of the program."""
    _, ending = re.split("Examples?:", help_)
    lines = re.findall(r"^ *(nmt .*)$", ending, re.MULTILINE)
    assert lines
    return lines


def test_help_answers_without_torch() -> None:
    program = """
import sys
from nmt.cli.app import main

for arguments in [[], ["--help"], ["--version"], *([name, "--help"] for name in sys.argv[1:])]:
    sys.argv = ["nmt", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
for heavy in ("torch", "numpy", "sentencepiece", "sacrebleu"):
    assert heavy not in sys.modules, heavy
"""
    subprocess.run(
        [sys.executable, "-c", program, *COMMANDS], check=True, stdout=subprocess.DEVNULL
    )


@pytest.mark.parametrize("module", ["nmt.cli.app", "torch"])
def test_ctrl_c_while_modules_are_imported_costs_one_line(module: str) -> None:
    program = """
import os, signal, sys
from nmt.__main__ import main

class Finder:
    def find_spec(self, name, *_):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
sys.meta_path.insert(0, Finder())
sys.argv[1:1] = ["export", "--output", "export", "--model"]
main()
"""
    command = [sys.executable, "-c", program, module]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "nmt: error: interrupted\n")


def test_the_help_of_the_program_names_every_command(nmt: Any) -> None:
    done = nmt("--help")
    assert (done.status, done.err) == (0, "")
    _, commands = done.out.split("Commands:\n")
    assert re.findall(r"^  ([a-z]\S+)  ", commands, re.MULTILINE) == COMMANDS


@for_each("name", COMMANDS)
def test_no_flag_of_a_command_means_two_things(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    flags = [flag for parameter in command.params for flag in parameter.opts]
    assert len(flags) == len(set(flags))


@pytest.mark.full
def test_the_example_of_every_help_runs_one_after_the_other(nmt: Any, shell: Shell) -> None:
    # The example of preprocess asks for more subwords than six numbers have.
    for side in ("en", "de"):
        for split, original, step in (("train", "train", 100), ("valid", "dev", 500)):
            text = lzma.decompress((QUICKSTART / f"{original}.{side}.xz").read_bytes())
            some = text.splitlines(keepends=True)[::step]
            Path(f"corpus/{split}.{side}").write_bytes(b"".join(some))
    for command in COMMANDS:
        if command in ("serve", "filter"):  # test_serve.py, test_filter_command.py: a server runs
            continue  # until it is stopped, a filter needs runs of both directions
        if command == "import":  # a model to import
            export = "nmt export --format huggingface --model checkpoints --output opus-mt-en-de"
            assert shell(export).returncode == 0
        for line in examples(nmt(command, "--help").out):
            assert line.startswith(f"nmt {command} ")
            done = shell(line)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            if command not in ("init", "tune", "translate"):  # busy machine, few lines, flags
                assert "warning" not in done.stderr
        if command == "init":  # MarianMTModel, which the examples export to, has no others
            recipe = Path("nmt.yaml")
            recipe.write_text(recipe.read_text().replace("rotary", "sinusoidal"))
    for written in ("output.txt", "test.align"):
        assert len(Path(written).read_text().splitlines()) == 10
    assert Run.open(Path("averaged")).recipe["averaged"] == ["update_0000001", "update_0000002"]


QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


def test_three_commands_lead_from_text_to_translations(nmt: Any, here: Path, recipe: Path) -> None:
    section = "preprocess:\n  train: corpus/train\n  valid: corpus/valid\n"
    Path("nmt.yaml").write_text(recipe.read_text().replace("\npreprocess:\n", section))
    preprocessed = nmt("preprocess")
    assert (preprocessed.status, preprocessed.out) == (0, "data-bin\n")
    assert "replaced" not in preprocessed.err
    told = "data-bin: the dataset there, en to de, 200 pairs, will be replaced at the end\n"
    assert nmt("preprocess").err.startswith(told)
    trained = nmt("train", "--arch", "transformer_tiny")
    assert (trained.status, trained.out) == (0, "checkpoints\n")
    translated = nmt("translate", stdin=here / "input.txt")
    assert translated.status == 0
    assert len(translated.out.splitlines()) == 10
    assert sorted(os.listdir(here)) == [
        "checkpoints", "corpus", "data-bin", "input.txt", "list.txt", "nmt.yaml", "test.de",
    ]  # fmt: skip


def test_a_mistake_in_a_real_process_costs_one_line(shell: Shell) -> None:
    done = shell("nmt preprocess -s en -t de --train no/train --valid corpus/valid")
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "nmt: error: no such file: no/train.en, nor the same name with .gz, .xz or .zst\n",
    )


@pytest.mark.full
def test_without_a_recipe_each_command_finds_what_the_one_before_it_left(
    nmt: Any, here: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("--train", "corpus/train", "--valid", "corpus/valid", "--vocab-size", 300)
    assert nmt("preprocess", "-s", "en", "-t", "de", *texts).status == 0
    short = ("--tokens-per-update", 300, "--max-updates", 2, "--save-every", 1, "--device", "cpu")
    tiny = ("--set", "model.d_model=16", "--set", "train.valid_metrics=[]")
    options = (*short, *tiny, "--set", "train.best_metric=loss")
    assert nmt("train", "--arch", "transformer_tiny", *options).status == 0
    averaged = nmt("average-checkpoints", "--last", 2).out
    assert averaged == "checkpoints/averaged\n"
    greedy = ("--strategy", "greedy")
    translated = nmt("translate", *greedy, stdin=here / "input.txt").out
    assert len(translated.splitlines()) == 10
    Path("checkpoints").rename("elsewhere")
    assert nmt("translate", *greedy, stdin=here / "input.txt").status == 1
    monkeypatch.setenv("NMT_MODEL", "elsewhere")
    assert nmt("translate", *greedy, stdin=here / "input.txt").out == translated


@pytest.mark.full
def test_a_reader_that_goes_away_gives_status_141_and_no_message(trained: Path) -> None:
    piped = f"yes eins | {sys.executable} -m nmt translate --model {trained} --window 8"
    script = f"set -o pipefail; {piped} 2> err | head -1 > /dev/null; echo ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=trained.parent, check=False
    )
    assert done.stdout == "141\n"
    assert "error" not in (trained.parent / "err").read_text()

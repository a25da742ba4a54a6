"""Flags that set keys of the recipe take type, help and default from the fields of the keys."""

from __future__ import annotations

import dataclasses
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from nmt.cli import preprocess, train
from nmt.cli.app import app
from nmt.cli.options import Flag, flags_of, summary
from nmt.cli.recipe import DEFAULT_ARCH
from nmt.cli.score import command as score
from nmt.cli.translate import command as translate
from nmt.evaluation import ScoreConfig
from nmt.inference import SearchConfig
from nmt.models import architectures
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.keys import keys
from nmt.training.config import TrainConfig

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
TABLES = {
    "preprocess": preprocess.FLAGS,
    "train": train.FLAGS,
    "translate": translate.FLAGS,
    "score": score.FLAGS,
}
FLAGS = [(command, flag) for command, table in TABLES.items() for flag in flags_of(table)]

LIVE = {
    "preprocess": PreprocessConfig(),
    "model": architectures[DEFAULT_ARCH],
    "train": TrainConfig(),
    "search": SearchConfig(),
    "score": ScoreConfig(),
}
"""The sections with their defaults, by import."""

script = runpy.run_path(str(Path(__file__).parents[1] / "docs/make_recipe_reference.py"))
documentation = script["field_documentation"]


def entries(registry: Any) -> dict[str, Any]:
    return {name: registry[name] for name in registry}


def owners(path: str) -> list[Any]:
    """The parts of a recipe that have a key; the part that is the default comes first."""
    section, *parents, name = path.split(".")
    parts = [LIVE[section]]
    if section == "model":
        parts += entries(architectures).values()
    for parent in parents:
        chosen = next(getattr(part, parent) for part in parts if hasattr(part, parent))
        parts = [chosen, *entries(chosen.registry).values()]
    return [part for part in parts if hasattr(part, name)]


def plain(value: Any) -> Any:
    """A value as help prints it: a choice by its name."""
    if dataclasses.is_dataclass(value):
        return value.name  # type: ignore[attr-defined]
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def option(command: str, name: str) -> Any:
    return next(each for each in COMMANDS[command].params if each.name == name)


def help_is_the_docstring(command: str, flag: Flag) -> bool:
    text = documentation(owners(flag.path)[0])[flag.path.rpartition(".")[2]]
    said = option(command, flag.name).help
    for owner, other in FLAGS:  # a flag may stand for its key
        if owner == command:
            key = other.path.rpartition(".")[2]
            said = re.sub(rf"(?<![\w-]){other.long}(?![\w-])", key, said)
    said = re.sub(r"  \[.*\]$", "", said).removesuffix(" May be given several times.")
    said, _, _ = said.partition(" One of ")
    sentence, *_ = re.split(r"(?<=\.)\s(?=[A-Z\"`])", text)
    return said.startswith(sentence.replace("`", "")) and text.replace("`", "").startswith(said)


def test_the_help_of_a_flag_is_the_docstring_of_its_field() -> None:
    odd = [
        f"{command} {flag.long}"
        for command, flag in FLAGS
        if not help_is_the_docstring(command, flag)
    ]
    assert odd == []


def help_names_the_default(command: str, flag: Flag) -> bool:
    name = flag.path.rpartition(".")[2]
    defaults = [plain(getattr(part, name)) for part in owners(flag.path)]
    default = ", ".join(defaults[0]) if isinstance(defaults[0], tuple) else defaults[0]
    said = option(command, flag.name).help
    if name != "arch" and len(set(defaults)) > 1:
        return f"default: {default} with " in said
    if default is None or default is False or default == "":
        return "default:" not in said
    return bool(said.endswith(f"default: {'true' if default is True else default}]"))


def test_the_help_of_a_flag_names_the_default_of_its_field() -> None:
    odd = [
        f"{command} {flag.long}"
        for command, flag in FLAGS
        if not help_names_the_default(command, flag)
    ]
    assert odd == []


def test_defaults_that_depend_on_a_choice_say_so() -> None:
    table = keys()
    alpha = table["search.strategy.length_penalty.alpha"]
    assert alpha.default == "0.6 with gnmt, 1.0 with power"
    assert table["model.dropout"].default == (
        "0.1 with transformer_base; depends on the architecture"
    )
    assert table["train.schedule.lr"].default == ""
    assert table["search.strategy.top_k"].needs == "sample"
    assert table["search.strategy.beam"].needs == ""


def test_the_paths_of_a_key_are_found_without_torch() -> None:
    program = (
        "import sys; from nmt.cli.recipe import homes\n"
        "print(*homes('lr'), *homes('beam'), *homes('seed'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [
        "train.schedule.lr", "search.strategy.beam", "preprocess.seed", "train.seed", "False"
    ]  # fmt: skip


def test_a_help_has_whole_sentences_while_they_are_short() -> None:
    long = "It says more than anyone who asks for a list of options would like to read " * 2
    assert summary("One. Two (Wu et al. 2016).\n    Three.") == "One. Two (Wu et al. 2016). Three."
    assert summary(f"One. {long}. Three.") == "One."
    assert summary(f"{long}.") == f"{long}."


def test_names_of_choices_are_completed(nmt: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("_NMT_COMPLETE", "complete_bash")
    for line, expected in {
        "translate --strategy l": ["lexical_beam"],
        "translate --stop ": [
            "first_beam",
            "optimistic",
            "all_finished",
            "current_length",
            "shrinking_beam",
        ],
        "train --arch transformer_b": [
            "transformer_base",
            "transformer_big",
            "transformer_big_en_fr",
        ],
        "score --metric chr": ["chrf", "chrf++"],
        "preprocess --clean h": ["held_out"],
        "train --wa": ["--warmup-updates"],
    }.items():
        monkeypatch.setenv("COMP_WORDS", f"nmt {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        assert nmt().out.split() == expected

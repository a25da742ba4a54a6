"""Answer options of other toolkits with the option of ``nmt`` that replaces them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from nmt.cli.options import SEARCH_FLAGS, flags_of
from nmt.errors import UnknownKeyError
from nmt.io.lines import COMPRESSED
from nmt.migration import TOOLKITS
from nmt.migration.habits import COMMANDS, HABITS, NAMES, Habit
from nmt.migration.shell import PROGRAMS
from nmt.recipe.registry import nearest


def answer_command(name: str) -> str | None:
    """Return the message for a command of another toolkit, or None if none has it."""
    asked = name.replace("_", "-")
    toolkit = next((toolkit for toolkit, names in PROGRAMS.items() if asked in names), None)
    short = re.sub("^(?:fairseq|marian|sockeye|onmt)-", "", asked)
    ours = next((ours for ours, others in COMMANDS.items() if short in others.split()), None)
    if toolkit:
        ours = ours or PROGRAMS[toolkit][asked]
        hint = f"nmt recipe --from {toolkit} converts its options"
        return f"no command {name!r}; use nmt {ours}; {hint}"
    return f"no command {name!r}; use nmt {ours}" if ours else None


def answer(command: str, option: str, ours: Iterable[str]) -> str:
    """Return the message for an option that a command does not have.

    Args:
        command: name of the command.
        option: the option as typed.
        ours: the options of the command.
    """
    asked = option.replace("_", "-")
    ours = list(ours)
    if not any(_owners(habit, asked) for habit in HABITS.get(command, ())):
        if asked in ours:
            return f"no option {option}; use {asked}"
        if path := _key(command, asked):
            return f"no option {option}; use --set {path}=VALUE"
    if answers := _answers(command, asked):
        first, *others = [f"{owners}; {remedy}" for remedy, owners in answers.items()]
        return "; ".join([f"{option} is an option of {first}", *(f"and of {o}" for o in others)])
    for names, remedy in GUESSES.get(command, {}).items():
        if asked in names.split():
            return f"no option {option}; {remedy}"
    long_names = {name.lstrip("-"): name for name in ours if name.startswith("--")}
    if similar := nearest(option.lstrip("-"), long_names):
        return f"no option {option}; did you mean {long_names[similar]}?"
    if command == "recipe":
        return f"no option {option}; put the command of the other toolkit in quotes"
    return f"no option {option}"


SECTIONS_OF = {
    "preprocess": ("preprocess",),
    "train": ("train", "model"),
    "translate": ("search",),
    "score": ("score",),
}
"""Sections of the recipe with the keys of each command."""


RESUMED = "give the same --save-dir: the run there is resumed"

GUESSES = {
    "train": {
        "--continue --resume --resume-from": RESUMED,
        "--gpus --ngpus --num-gpus": "use torchrun --nproc-per-node N -m nmt train",
        "--no-cuda": "use --device cpu",
    },
    "translate": {
        "--checkpoint": "use --model RUN/best, or another checkpoint of the run",
        "--quantization --quantize": "use --precision int8",
    },
    "export": {"--compute-type --quantization --quantize": "use --precision int8"},
}
"""For each command, remedies for options that no toolkit of our tables has, but users expect."""


OPTIONS_FOR_ARGUMENTS = {"preprocess": "--train", "train": "--data", "serve": "--model"}
"""For commands without arguments, the option that users of other toolkits give as one."""


ONE_TEXT = "give one file of text, and each model its own --model"


def answer_arguments(command: str, arguments: list[str]) -> str:
    """Return the message for more arguments than a command takes."""
    first = arguments[0]
    message = f"unexpected argument {first}"
    if option := OPTIONS_FOR_ARGUMENTS.get(command):
        return f"{message}; use {option} {_prefix(first) if command == 'preprocess' else first}"
    return f"{message}; {ONE_TEXT}" if command == "translate" else message


def _prefix(path: str) -> str:
    """Return the prefix of the files of a corpus, from one of them."""
    there = any(Path(f"{path}{suffix}").is_file() for suffix in ("", *COMPRESSED))
    if not there or ".tsv" in Path(path).suffixes[-2:]:
        return path
    plain = Path(path)
    if plain.suffix in COMPRESSED:
        plain = plain.with_suffix("")
    return str(plain.with_suffix(""))


def answer_key(error: UnknownKeyError) -> str:
    """Return the message for a section, or a key of a section, that the recipe does not have."""
    from nmt.cli.recipe import SECTIONS, homes

    where, key = error.where, error.key
    section = where.rpartition(": ")[2]
    if section not in SECTIONS and not where.startswith("--set "):  # a file, or a part of a section
        return str(error)
    paths = homes(key)
    if f"{section}.{key}" in paths:  # a key of another choice, as of another architecture
        return str(error)
    keys, asked = keys_of_flags(), f"--{key}".replace("_", "-")
    if here := [path for path in (*paths, keys.get(asked)) if path]:
        near = here[0].removeprefix(f"{section}.")
        return f"{where}: unknown key {key!r}; did you mean {near!r}?"
    for habit in (habit for habits in HABITS.values() for habit in habits):
        if owners := _owners(habit, asked):
            remedy = habit.remedy
            if path := habit.key(keys):
                _, comma, meaning = remedy.partition(",")
                remedy = f"use {path}{comma}{meaning}"
            return f"{where}: {key!r} is an option of {owners}; {remedy}"
    return str(error)


def keys_of_flags() -> dict[str, str]:
    """Return the key of the recipe that each option of ``nmt`` sets."""
    from nmt.cli import preprocess, train

    tables = (preprocess.FLAGS, train.FLAGS, {"Search": SEARCH_FLAGS})
    return {flag.long: flag.path for table in tables for flag in flags_of(table)}


def answer_single_dash(command: str, word: str, ours: Iterable[str]) -> str | None:
    """Return the message for a long name behind one dash, which would be read as short options.

    Args:
        command: name of the command.
        word: a word of the command line.
        ours: the options of the command.
    """
    if not re.fullmatch("-[a-z][a-z_-]+", word):
        return None
    short, long = word.replace("_", "-"), f"-{word}".replace("_", "-")
    if long in ours:
        return f"no option {word}; use {long}"
    name = next((name for name in (short, long) if _answers(command, name)), None)
    return answer(command, f"-{word}" if name == long else word, ours) if name else None


def _answers(command: str, option: str) -> dict[str, str]:
    """Return the toolkits that have an option of a command, by what replaces it.

    The options of our tables come first, then those that :data:`TOOLKITS` convert. The programs
    that train may read text, too, as ``nmt preprocess`` does.
    """
    answers: dict[str, list[str]] = {}

    def add(remedy: str, names: Iterable[str]) -> None:
        known = {name for others in answers.values() for name in others}
        if new := [name for name in names if name not in known]:
            answers.setdefault(remedy, []).extend(new)

    for habit in HABITS.get(command, ()):
        add(habit.remedy, _having(habit, option))
    if command in SECTIONS_OF and command != "score":
        for toolkit, rules in TOOLKITS.items():
            if reason := rules.WITHOUT.get(option):
                add(reason, [NAMES[toolkit]])
            path = rules.KEYS.get(option, "")
            if path.partition(".")[0] in SECTIONS_OF[command]:
                add(f"use --set {path}=VALUE", [NAMES[toolkit]])
    for habit in HABITS["preprocess"] if command == "train" else ():
        add(habit.remedy.replace("use --", "use nmt preprocess --"), _having(habit, option))
    return {remedy: _listed(names) for remedy, names in answers.items()}


def _owners(habit: Habit, option: str) -> str:
    """Return the toolkits that have an option, as the end of a sentence; empty if none has it."""
    return _listed(_having(habit, option))


def _having(habit: Habit, option: str) -> list[str]:
    """Return the names of the toolkits that have an option."""
    return [
        name
        for name, options in habit.toolkits()
        if option in (other.replace("_", "-") for other in options)
    ]


def _listed(names: list[str]) -> str:
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _key(command: str, option: str) -> str | None:
    """Return the path of the recipe key with the name of an option, or None."""
    from nmt.cli.recipe import homes

    paths = homes(option.lstrip("-").replace("-", "_")) if option.startswith("--") else []
    return next(
        (path for path in paths if path.partition(".")[0] in SECTIONS_OF.get(command, ())), None
    )

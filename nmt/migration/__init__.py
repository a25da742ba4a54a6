"""Recipes from the options of other toolkits, and the table of these options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from nmt.migration import fairseq, marian, opennmt, sockeye
from nmt.migration.habits import HABITS, NAMES, SHARED, Habit
from nmt.migration.options import Draft, Options, scalar
from nmt.recipe.config import set_path
from nmt.recipe.registry import nearest

TOOLKITS: Mapping[str, ModuleType] = {
    "fairseq": fairseq,
    "marian": marian,
    "sockeye": sockeye,
    "opennmt": opennmt,
}
"""The rules of each toolkit: `KEYS`, `WITHOUT`, and a function `convert`."""

LIMITS = {
    f"train.{key}"
    for key in ("keep_last", "log_every", "max_epochs", "patience", "save_every", "valid_every")
}
"""Keys with numbers from 1; other toolkits write 0 or -1 for no limit."""


LEAST_SEED = {"marian": 1, "opennmt": 1}
"""The least number that is a fixed seed of a toolkit, else 0."""


UNLIKE = {
    *("train.schedule", "train.optimizer", "train.loss", "train.best_metric"),
    "train.tokens_per_update",
}
"""Keys that no number sets: those with names, and one whose unit other toolkits do not have."""


SETS = {
    "preprocess": ("preprocess",),
    "train": ("preprocess", "model", "train", "search"),
    "translate": ("search",),
}
"""Sections of the recipe that a command sets; those of `train` give way to the others'."""


READS = {
    "train": "; give the dataset of nmt preprocess as --data DIR",
    "translate": "; nmt translate reads a run and a file of text",
}
"""Files of our commands, in the place of arguments that are no options."""


def recipe_of(toolkit: str, commands: Sequence[Options], flags: Mapping[str, str]) -> Draft:
    """Return the recipe that commands of another toolkit describe together, with notes.

    An option sets the key of the option that answers it in :data:`HABITS`, or the key in the
    toolkit's `KEYS`; what takes more than that is in the toolkit's `convert`. Of several commands
    that do the same, the first one is taken.

    Args:
        toolkit: one of `TOOLKITS`.
        commands: the options of each command, or of a configuration; they are used up.
        flags: dotted keys by the names of our options.

    Raises:
        NmtError: an option has a value that it cannot have.
    """
    draft = Draft()
    drafts: dict[str, Draft] = {}
    for options in commands:
        start = f"{options.program}: " if len(commands) > 1 else ""
        if options.command in drafts:
            draft.note(f"{start}not the first one; convert it alone")
            continue
        drafts[options.command] = part = _converted(toolkit, options, flags)
        dataset = drafts.get("preprocess", part).recipe.get("preprocess", {}).get("output_dir")
        for word in (word for word in options.positional if word != dataset):
            part.note(f"{word}: not carried over{READS.get(options.command, '')}")
        draft.notes += [f"{start}{note}" for note in part.notes]
    sections = {name: dict[str, Any]() for name in ("preprocess", "model", "train", "search")}
    for command in ("train", "preprocess", "translate"):
        for name, values in drafts.get(command, Draft()).recipe.items():
            sections[name] = values if name == "search" else sections[name] | values
    draft.recipe = {name: values for name, values in sections.items() if values}
    for path, text in _texts(draft.recipe):
        if re.search("[$`]", text):
            draft.note(f"{path} {text}: replace it; the script does not tell all of its parts")
    return draft


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts of a recipe with their paths."""
    if isinstance(value, str):
        yield path, value
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from _texts(inner, f"{path}.{key}".lstrip("."))
    for inner in value if isinstance(value, list) else ():
        yield from _texts(inner, path)


def _converted(toolkit: str, options: Options, flags: Mapping[str, str]) -> Draft:
    """Return what a command sets, with notes."""
    rules, draft, command = TOOLKITS[toolkit], Draft(), options.command
    for loop in options.loops:
        draft.note(f"{loop}: the first value is taken; use --set for the others")
    for option, word in options.unknown:
        draft.note(f"{option} {word}".strip() + ": left out; the script does not tell its value")
    rules.convert(options, draft)
    if options.assumed:
        taken = ", ".join(f"{name} {_shown(value)}" for name, value in options.assumed.items())
        draft.note(f"not given, so {NAMES[toolkit]}'s defaults: {taken}")
    answers = _answers(toolkit, command)
    for name, values in options.rest():
        shown = " ".join([name, *map(str, values)])
        habit = answers.get(name)
        value = scalar(values[0]) if values else True
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        key = rules.KEYS.get(name)
        if habit and is_number:
            key = key or _key(habit, flags)
        foreign = key if key and key.partition(".")[0] not in SETS.get(command, ()) else None
        key = None if foreign else key
        if key in LIMITS and is_number and value < 1:
            draft.note(f"{shown}: no limit there; the default of {key} is taken")
        elif key == "train.seed" and is_number and value < LEAST_SEED.get(toolkit, 0):
            draft.note(f"{shown}: no fixed seed there; the default of train.seed is taken")
        elif key:
            set_path(draft.recipe, key, value)
            if len(values) > 1:
                draft.note(f"{shown}: {key} has one value; the first one is taken")
        elif habit and command != "train":
            draft.note(f"{shown}: {habit.remedy}")
        elif reason := rules.WITHOUT.get(name):
            draft.note(f"{shown}: {reason}")
        elif habit:
            draft.note(f"{shown}: {habit.remedy}")
        elif foreign:
            draft.note(f"{shown}: nmt {command} does not set {foreign}")
        else:
            known = {other.lstrip("-"): other for other in (*rules.KEYS, *answers)}
            guess = nearest(name.lstrip("-"), known) if name.startswith("--") else None
            hint = f"; did you mean {known[guess]}?" if guess else ""
            draft.note(f"{shown}: unknown, not carried over{hint}")
    return draft


def _shown(value: Any) -> str:
    """Return a default as it stands on a command line."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _key(habit: Habit, flags: Mapping[str, str]) -> str | None:
    """Return the key that the number of another toolkit's option sets; None if there is none."""
    key = habit.key(flags)
    return None if key in UNLIKE else key


def _answers(toolkit: str, command: str) -> dict[str, Habit]:
    """Return the answers to options of a toolkit's command by name.

    The programs and configurations that train may read text, too, as ``nmt preprocess`` does.
    """
    answers: dict[str, Habit] = {}
    for name in ("train", "preprocess") if command == "train" else (command,):
        for habit in (*HABITS[name], *SHARED.get(name, ())):
            for option in getattr(habit, toolkit).split():
                answers.setdefault(option.replace("_", "-"), habit)
    return answers

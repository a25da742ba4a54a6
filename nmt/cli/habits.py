"""Answer options of other toolkits with the option of ``nmt`` that replaces them."""

from __future__ import annotations

from collections.abc import Iterable

from nmt.migration.habits import COMMANDS, HABITS
from nmt.recipe.registry import nearest


def our_command(name: str) -> str | None:
    """Return our command for the name that another toolkit has for it, or None."""
    asked = name.replace("_", "-")
    return next((ours for ours, others in COMMANDS.items() if asked in others.split()), None)


def answer(command: str, option: str, ours: Iterable[str]) -> str:
    """Return the message for an option that a command does not have.

    Args:
        command: name of the command.
        option: the option as typed.
        ours: the options of the command.
    """
    asked = option.replace("_", "-")
    for habit in HABITS.get(command, ()):
        owners = [
            name
            for name, options in habit.toolkits()
            if asked in (other.replace("_", "-") for other in options)
        ]
        if owners:
            return f"{option} is an option of {_listed(owners)}; {habit.remedy}"
    ours = list(ours)
    if asked in ours:
        return f"no option {option}; use {asked}"
    if path := _key(command, asked):
        return f"no option {option}; use --set {path}=VALUE"
    names = {name.lstrip("-"): name for name in ours if name.startswith("--")}
    if similar := nearest(option.lstrip("-"), names):
        return f"no option {option}; did you mean {names[similar]}?"
    return f"no option {option}"


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _key(command: str, option: str) -> str | None:
    """Return the path of the recipe key with the name of an option, or None."""
    from nmt.cli.recipe import homes

    sections = {
        "preprocess": ("preprocess",),
        "train": ("train", "model"),
        "translate": ("search",),
        "score": ("score",),
    }
    paths = homes(option.lstrip("-").replace("-", "_")) if option.startswith("--") else []
    return next(
        (path for path in paths if path.partition(".")[0] in sections.get(command, ())), None
    )

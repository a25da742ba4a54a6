"""Messages for commands, options, arguments and recipe keys that ``nmt`` does not have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from nmt.advice.migration.hints import COMMANDS, HINTS
from nmt.errors import UnknownKeyError

SECTIONS_OF = {
    "preprocess": ("preprocess",),
    "train": ("train", "model"),
    "translate": ("search",),
    "score": ("score",),
}
"""The sections of the recipe that a command reads."""

OPTIONS_FOR_ARGUMENTS = {"preprocess": "--train", "train": "--data", "serve": "--model"}
"""For commands without arguments, the option that users of other toolkits give as an argument."""

ONE_TEXT = "give one file of text, and each model its own --model"


def answer_command(name: str, *rest: str) -> str | None:
    """Return the message for a command of another toolkit, or None for an unknown command.

    Args:
        name: the command as typed.
        rest: the words after it.
    """
    if name == "help":
        about = [word for word in rest[:1] if not word.startswith("-")]
        return f"no command 'help'; use nmt {' '.join([*about, '--help'])}"
    ours = COMMANDS.get(name.replace("_", "-"))
    return f"no command {name!r}; use nmt {ours}" if ours else None


def answer(command: str, option: str, ours: Iterable[str]) -> str:
    """Return the message for an option that a command does not have.

    Args:
        command: name of the command.
        option: the option as typed.
        ours: the options of the command.
    """
    # Some toolkits write options with underscores.
    asked, ours = option.replace("_", "-"), list(ours)
    if asked in ours:
        return f"no option {option}; use {asked}"
    if hint := HINTS.get(command, {}).get(asked):
        return f"no option {option}; {hint}"
    if path := _key(command, asked):
        return f"no option {option}; use --set {path}=VALUE"
    if similar := get_close_matches(asked, ours, n=1, cutoff=0.75):
        return f"no option {option}; did you mean {similar[0]}?"
    if command == "recipe":
        return f"no option {option}; put the command of the other toolkit in quotes"
    return f"no option {option}"


def answer_arguments(command: str, arguments: list[str], ours: Iterable[str]) -> str:
    """Return the message for more arguments than a command takes; `ours` are its options."""
    message = f"unexpected argument {arguments[0]}"
    if arguments[0].lower().endswith((".yaml", ".yml")) and "--config" in ours:
        return f"{message}; use --config {arguments[0]}"
    if option := OPTIONS_FOR_ARGUMENTS.get(command):
        return f"{message}; use {option} {arguments[0]}"
    return f"{message}; {ONE_TEXT}" if command == "translate" else message


def answer_single_dash(word: str, ours: Iterable[str]) -> str | None:
    """Return the message for a long option after one dash, which would be read as short options."""
    long = f"-{word}".replace("_", "-")
    is_long = re.fullmatch("-[a-z][a-z_-]+", word) and long in ours
    return f"no option {word}; use {long}" if is_long else None


def answer_key(error: UnknownKeyError) -> str:
    """Return the message for a section, or a key of a section, that the recipe does not have."""
    # Imported here, because a recipe without mistakes needs no suggestions.
    from nmt.cli.recipe import SECTIONS, homes

    where, key = error.where, error.key
    section = where.rpartition(": ")[2]
    if section not in SECTIONS and not where.startswith("--set "):  # a file, or a nested key
        return str(error)
    paths = homes(key)
    if f"{section}.{key}" in paths:  # a key of another choice, for example of another architecture
        return str(error)
    if paths:
        return (
            f"{where}: unknown key {key!r}; did you mean {paths[0].removeprefix(f'{section}.')!r}?"
        )
    option = f"--{key}".replace("_", "-")
    hint = next((hints[option] for hints in HINTS.values() if option in hints), None)
    return f"{where}: unknown key {key!r}; {_for_recipe(hint)}" if hint else str(error)


def _for_recipe(hint: str) -> str:
    """Return a hint that names a key of the recipe where it named one option."""
    from nmt.cli.recipe import homes

    if match := re.match(r"use --set '?([\w.]+)=|use --([\w-]+)", hint):
        paths = [match[1]] if match[1] else homes(match[2].replace("-", "_"))
        return f"use {paths[0]}" if paths else hint
    return hint


def _key(command: str, option: str) -> str | None:
    """Return the path of the recipe key with the name of an option, or None."""
    from nmt.cli.recipe import homes

    sections = SECTIONS_OF.get(command, ())
    paths = homes(option.lstrip("-").replace("-", "_")) if option.startswith("--") else []
    return next((path for path in paths if path.partition(".")[0] in sections), None)

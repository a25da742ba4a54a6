"""The command ``nmt recipe``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.console import show
from nmt.cli.habits import keys_of_flags
from nmt.errors import NmtError
from nmt.messages import one_line, say

if TYPE_CHECKING:
    from nmt.migration.options import Options

EXAMPLE = """Example:

  nmt recipe --from fairseq "fairseq-train data-bin --arch transformer" > fairseq.yaml"""

MAX_BYTES = 1 << 20
"""Largest configuration, in bytes."""


def convert(
    what: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND|FILE",
            help="A command line of the toolkit, in quotes, or a file: a script with its commands, "
            "or a configuration in YAML.",
            show_default=False,
        ),
    ],
    toolkit: Annotated[
        str,
        typer.Option("--from", metavar="NAME", help="fairseq, marian, sockeye or opennmt."),
    ],
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of GPUs, where neither the command line nor the configuration says.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a recipe for commands or a configuration of another toolkit.

    The recipe goes to stdout, as YAML. Messages on stderr list each assumption, and each option
    that the recipe cannot hold, with the reason. docs/migrating.md shows the commands of the
    toolkits beside those of nmt.
    """
    import yaml

    from nmt.migration import TOOLKITS, recipe_of
    from nmt.recipe.registry import unknown

    if toolkit not in TOOLKITS:
        raise NmtError(f"--from: {unknown('toolkit', toolkit, TOOLKITS)}")
    commands = _commands(what, toolkit)
    if gpus is not None:
        for options in commands:
            options.devices = gpus
    draft = recipe_of(toolkit, commands, keys_of_flags())
    show(yaml.safe_dump(draft.recipe, sort_keys=False, allow_unicode=True).rstrip("\n"))
    for note in draft.notes:
        say(one_line(note))


def _commands(what: str, toolkit: str) -> "list[Options]":
    """Return the options of each command of a text or a file, or of a configuration."""
    from nmt.io.documents import read_bounded
    from nmt.migration.options import Options
    from nmt.migration.shell import PROGRAMS
    from nmt.recipe.config import parse_yaml

    path = Path(what)
    is_command = " " in what.strip() or what.strip().replace("_", "-") in PROGRAMS[toolkit]
    if is_command and not os.path.exists(path):  # False for a name that is too long, too
        return Options.of_script(what, toolkit)
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise NmtError(
            f"{what}: no such file; give a command line in quotes, or a configuration"
        ) from None
    except UnicodeDecodeError:
        raise NmtError(f"{what}: not UTF-8; give a command line or a configuration") from None
    if path.suffix in (".yml", ".yaml"):
        values = parse_yaml(text, what)
        if not isinstance(values, dict):
            raise NmtError(f"{what}: expected keys and values")
        return [Options.of_configuration(values)]
    return Options.of_script(text, toolkit)

"""The command ``nmt recipe``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.console import show
from nmt.errors import NmtError
from nmt.messages import one_line, say

if TYPE_CHECKING:
    from nmt.advice.migration.options import Options

EXAMPLE = """Example:

  nmt recipe --from fairseq "fairseq-train data-bin --arch transformer" > fairseq.yaml"""

MAX_BYTES = 1 << 20
"""Largest configuration, in bytes."""


def convert(
    what: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND|FILE",
            help="A command line of the toolkit, in quotes, or a file with one, or a configuration "
            "of Marian in YAML.",
            show_default=False,
        ),
    ],
    toolkit: Annotated[str, typer.Option("--from", metavar="NAME", help="fairseq or marian.")],
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of GPUs that fairseq used.  [default: --distributed-world-size, or 1]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a recipe for a command or a configuration of fairseq or Marian.

    The recipe goes to stdout, as YAML. Messages on stderr list each assumption, and each option
    that the recipe cannot hold, with what to do. docs/migrating.md shows the commands of other
    toolkits next to the commands of nmt.
    """
    import yaml

    from nmt.advice.migration import fairseq, marian
    from nmt.advice.migration.options import Draft
    from nmt.recipe.registry import unknown

    toolkits = {"fairseq": fairseq, "marian": marian}
    if toolkit not in toolkits:
        raise NmtError(f"--from: {unknown('toolkit', toolkit, toolkits)}")
    rules = toolkits[toolkit]
    options = _options(what, toolkit, rules.PROGRAMS)
    options.devices = gpus
    draft = Draft()
    rules.convert(options, draft)
    # In the order of the pipeline, whatever order the options have.
    sections = ("preprocess", "model", "train", "search")
    recipe = {name: draft.recipe[name] for name in sections if name in draft.recipe}
    show(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).rstrip("\n"))
    for note in draft.notes:
        say(one_line(note))


def _options(what: str, toolkit: str, programs: Mapping[str, str]) -> "Options":
    """Return the options of a command line, or of a file with a command line or a configuration."""
    from nmt.advice.migration.options import Options
    from nmt.io.documents import read_bounded
    from nmt.recipe.config import parse_yaml

    is_command = " " in what.strip() or what.strip() in programs
    if is_command and not os.path.exists(what):  # False for a name that is too long, too
        return Options.of_command_line(what, programs)
    try:
        text = read_bounded(Path(what), MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise NmtError(f"{what}: no such file; give a command line in quotes, or a file") from None
    except UnicodeDecodeError:
        raise NmtError(f"{what}: not UTF-8; give a command line or a configuration") from None
    if Path(what).suffix not in (".yml", ".yaml"):
        return Options.of_command_line(text, programs)
    if toolkit != "marian":
        raise NmtError(f"{what}: only Marian's configurations are read; give a command line")
    values = parse_yaml(text, what)
    if not isinstance(values, dict):
        raise NmtError(f"{what}: expected keys and values")
    return Options.of_configuration(values)

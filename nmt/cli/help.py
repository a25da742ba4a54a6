"""Help of commands: options in panels by subject at a terminal, in one list elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from typer.core import TyperCommand, TyperGroup

from nmt.cli.habits import answer_arguments, answer_single_dash

_NOTE = re.compile(r"\[(?:default: |env var: |required|x[<>]|\w+ only)[^\]]*\]")
_SHORT_NOTE = re.compile(r"\[default: [^\] ]{,20}\]")

Rows = list[tuple[str, str]]
"""Options or commands, each with its help."""


class Command(TyperCommand):
    """A command whose options are in panels at a terminal."""

    allow_extra_args = True  # `invoke` refuses them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an error of the parser names this command."""
        ours = [name for parameter in self.params for name in parameter.opts]
        for word in takewhile(lambda word: word != "--", args):
            if message := answer_single_dash(ctx.info_name, word, ours):
                ctx.fail(message)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command, unless there are more arguments than it takes."""
        if ctx.args:
            ctx.fail(answer_arguments(ctx.info_name, ctx.args))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options."""
        if sys.stdout.isatty():
            formatter.write(
                in_panels(options_by_subject(self.get_params(ctx), ctx), formatter.width)
            )
        else:
            super().format_options(ctx, formatter)


class Group(TyperGroup):
    """A program whose options and commands are in panels at a terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and the commands."""
        if sys.stdout.isatty():
            panels = options_by_subject(self.get_params(ctx), ctx)
            panels["Commands"] = [
                (name, command.get_short_help_str(1000)) for name, command in self.commands.items()
            ]
            formatter.write(in_panels(panels, formatter.width))
        else:
            super().format_options(ctx, formatter)


def options_by_subject(parameters: Iterable[Any], context: Any) -> dict[str, Rows]:
    """Return the options and arguments that are not hidden, by the titles of their panels."""
    panels: dict[str, Rows] = {}
    for parameter in parameters:
        if record := parameter.get_help_record(context):
            panels.setdefault(parameter.rich_help_panel or "Options", []).append(record)
    return panels


def in_panels(panels: Mapping[str, Rows], width: int) -> str:
    """Return a panel for each subject, with the colours that the terminal has."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.width = min(console.width, width + 2)
    names = [name for rows in panels.values() for name, _ in rows]
    widest = min(max(map(len, names)), console.width // 3)
    with console.capture() as written:
        console.print()
        for subject, rows in panels.items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(width=widest)
            table.add_column()
            for name, meaning in rows:
                meaning = " ".join(meaning.split())
                option, text = Text(name, "yellow"), Text(_SHORT_NOTE.sub(_unbroken, meaning))
                option.highlight_regex(r"(?<!\S)-[-\w]+|^\w[\w-]*$", "bold cyan")
                text.highlight_regex(_NOTE, "dim")
                table.add_row(option, text)
            console.print(Panel(table, title=subject, title_align="left", border_style="dim"))
    return written.get()


def _unbroken(text: re.Match[str]) -> str:
    return text[0].replace(" ", "\N{NO-BREAK SPACE}")

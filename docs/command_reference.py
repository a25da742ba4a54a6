"""The pages of the commands, as Markdown, from the same declarations as their `--help`."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer

from nmt.cli.app import app


def commands() -> dict[str, Any]:
    """Return the commands by name, in the order of `nmt --help`."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def command_table() -> str:
    """Return a table of all commands, with links to their pages."""
    rows = [
        f"| [`nmt {name}`]({name}.md) | {_prose(command.get_short_help_str(200))} |"
        for name, command in commands().items()
    ]
    return "\n".join(["| command | |", "|---|---|", *rows])


def command_pages() -> dict[str, str]:
    """Return the page of each command."""
    return {name: _page(name, command) for name, command in commands().items()}


def _page(name: str, command: Any) -> str:
    context = command.make_context(f"nmt {name}", [], resilient_parsing=True)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"# nmt {name}", f"```text\n{usage}\n```"]
    parts += [_prose(part) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    if example := re.search(r"\bnmt .*", command.epilog or "", re.S):
        parts.append(f"```sh\n{_example(example[0])}\n```")
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if not getattr(parameter, "hidden", False) and parameter.name != "help":
            is_argument = parameter.param_type_name == "argument"
            default = "Arguments" if is_argument else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or default
            panels.setdefault(panel, []).append(_parameter(parameter, context))
    for panel, parameters in panels.items():
        parts += [f"## {panel}", *parameters]
    return "\n\n".join(parts) + "\n"


def _example(text: str) -> str:
    """Return the commands of an epilog without its indentation and its prose."""
    return re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b", "")))[0]


def _parameter(parameter: Any, context: Any) -> str:
    """Return a parameter with its help, as an item of a definition list."""
    title, text = parameter.get_help_record(context)
    return f"`{' '.join(title.split())}`\n:   {_prose(text)}"


def _prose(text: str) -> str:
    """Return plain text as Markdown: options and quoted commands as code, documents as links."""
    text = " ".join(text.replace("\b", "").split())
    pieces = re.split(r'("nmt [^"]+"|(?<![\w-])--[a-z][\w-]*)', text)
    markdown = "".join(
        f"`{piece.strip(chr(34))}`" if at % 2 else re.sub(r"([\\`*_<>\[\]|])", r"\\\1", piece)
        for at, piece in enumerate(pieces)
    )
    return re.sub(r"docs/(\w+\.md)", r"[docs/\1](../\1)", markdown)

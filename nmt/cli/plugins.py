"""The flags that name plugins, and that allow a recipe or a run to import its plugins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nmt.plugins import import_plugins

PluginFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Import a Python module of your own, from the current directory or where Python "
        "looks. May be given several times.",
        show_default=False,
        rich_help_panel="Plugins",
    ),
]
TrustFlag = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        help="Import the plugins of the run, and of a recipe that was found, not given. This runs "
        "their Python code. NMT_TRUST_PLUGINS=1 does the same.",
        rich_help_panel="Plugins",
    ),
]


def import_named(plugins: Sequence[str] | None) -> None:
    """Import the modules that the command line names."""
    import_plugins(plugins or [], "--plugin", Path())

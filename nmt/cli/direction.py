"""Flags that choose the languages of a multilingual model."""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "Languages of a multilingual model"

TargetLang = Annotated[
    str | None,
    typer.Option(
        "--target-lang",
        "-t",
        metavar="LANG",
        help="Language to translate into.  [default: the only one of the model]",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
SourceLang = Annotated[
    str | None,
    typer.Option(
        "--source-lang",
        "-s",
        metavar="LANG",
        help="Language to translate from; a warning says if the direction was not trained.  "
        "[default: any of the model]",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]

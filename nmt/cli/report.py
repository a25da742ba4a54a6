"""``nmt report``: show what training measured, as a page, as JSON or as SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt.cli.console import OutputFlag, check_terminal
from nmt.cli.documents import check_kind, write_document
from nmt.messages import encodable, say

EXAMPLE = "Example: nmt report checkpoints > report.html"


Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Runs, also while they are trained.", show_default=False),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write what the page shows as JSON, with every value.")
]
Svg = Annotated[
    str | None,
    typer.Option(
        metavar="PANEL",
        help="Write one chart as SVG: loss, validation.loss, bleu, lr or another number of the "
        "log.",
        show_default=False,
    ),
]
Axis = Annotated[
    Literal["update", "minutes"],
    typer.Option("--by", help="Unit of the x axis of --svg."),
]
Grouped = Annotated[
    bool,
    typer.Option(
        "--group",
        help="Add a table of groups of runs whose recipes differ only in the seed: mean, standard "
        "deviation, standard error and significance of their best validations.",
    ),
]


def report(
    runs: Runs,
    output: OutputFlag = None,
    as_json: AsJson = False,
    svg: Svg = None,
    by: Axis = "update",
    group: Grouped = False,
) -> None:
    """Show the curves, the recipe and the data of training runs.

    Writes one HTML page that needs no network, about one or several runs, ended or not: the numbers
    of the log over updates and over time, and the keys in which the recipes differ. Needs
    Matplotlib: pip install 'nmt-toolkit[report]'.
    """
    if svg and as_json:
        raise typer.BadParameter("give either --svg or --json")
    if svg and group:
        raise typer.BadParameter("--group goes with no --svg: it adds a table")
    check_kind(output, "svg" if svg else "json" if as_json else "html")
    if not (svg or as_json):
        check_terminal(output, "report.html")
    from nmt.report.document import read_runs

    gathered = read_runs(runs, group)
    if svg:
        from nmt.report.charts import choose, picture

        panel = choose(gathered.logs, svg)
        chart = panel.chart(by, gathered.colours, {})
        written = picture({panel.title: chart})
    elif as_json:
        written = json.dumps(gathered.document(), ensure_ascii=False) + "\n"
    else:
        from nmt.report.page import page

        written = page(gathered)
    content = encodable(written).encode()
    write_document(output, content)
    count = len(gathered.runs)
    say(f"reported {count} run{'s' * (count > 1)} in {len(content):,} bytes")

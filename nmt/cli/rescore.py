"""``nmt rescore``: add a model's score to an n-best list as a feature, and sort the list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.console import check_stdin
from nmt.cli.n_best import parse_weights, rescored
from nmt.cli.plugins import PluginFlag, TrustFlag, import_named
from nmt.cli.score_by_model import open_model
from nmt.io.lines import Lines

EXAMPLE = "Example: nmt rescore --model averaged --source input.txt list.txt > rescored.txt"


def rescore(
    model: Annotated[
        Path, typer.Option(help="A run (its best checkpoint) or one of its checkpoints.")
    ],
    source: Annotated[Path, typer.Option(help="What was translated; plain, .gz, .xz or .zst.")],
    n_best: Annotated[
        Path | None,
        typer.Argument(
            help='The list, by the lines of the source: "id ||| text ||| features ||| score"; '
            "plain, .gz, .xz or .zst; - for stdin.  [default: -]",
            show_default=False,
        ),
    ] = None,
    feature: Annotated[
        str, typer.Option(metavar="NAME", help="What the new feature is called.")
    ] = "Model",
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=NUMBER,...",
            help="The score becomes the weighted sum of these features; sort by it.",
            show_default=False,
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Print the text that is first for each line, no list.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Score an n-best list by a model.

    Prints the list, as nmt translate --n-best writes it, with one more feature: the log-probability
    that the model gives to each translation. With --weights the translations of a line are sorted
    by the weighted sum of features. docs/outputs.md describes the lines.
    """
    listed = n_best or Path("-")
    check_stdin(source, listed)
    weighted = parse_weights(weights)
    import_named(plugin)
    translator = open_model(model, device, trust_plugins)

    def scores(sources: list[str], targets: list[str]) -> list[float]:
        return [sum(values) for values in translator.score(sources, targets)]

    texts = Lines.open(source), Lines.open(listed)
    for candidates in rescored(*texts, scores, feature, weighted):
        if best:
            print(candidates[0].text if candidates else "")
        else:
            print(*candidates, sep="\n", end="\n" if candidates else "")

"""``nmt align``: word alignments of given translations."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.console import check_stdin
from nmt.cli.plugins import PluginFlag, TrustFlag, import_named
from nmt.cli.score_by_model import BLOCK, open_model, unequal_lines
from nmt.io.lines import Lines

EXAMPLE = "Example: nmt align --model averaged --source input.txt --target test.de > test.align"


def align(
    model: Annotated[
        Path, typer.Option(help="A run (its best checkpoint) or one of its checkpoints.")
    ],
    source: Annotated[Path, typer.Option(help="The source; plain, .gz, .xz or .zst.")],
    target: Annotated[
        Path, typer.Option(help="Its translation, line by line; plain, .gz, .xz or .zst.")
    ],
    layer: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The decoder layer of a Transformer whose attention is used, from 1.  [default: "
            "alignment_layer of the run's model]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Align the words of given translations with those of their sources.

    Prints a line for each pair, in Pharaoh format: S-T for each target word T that has subwords,
    where S is the source word to which the model attends most while it predicts these subwords.
    Words are separated by white space and numbered from 0.
    """
    check_stdin(source, target)
    import_named(plugin)
    lines = Lines.open(source), Lines.open(target)
    translator = open_model(model, device, trust_plugins)
    if layer is not None:
        translator.model.align_by(layer)
    ended: list[str] = []
    for sources, targets in zip_longest(*(side.blocks(BLOCK) for side in lines), fillvalue=ended):
        if len(sources) != len(targets):
            raise unequal_lines(*lines)
        for links in translator.align(sources, targets):
            print(" ".join(f"{source_word}-{target_word}" for source_word, target_word in links))

"""``nmt align``: word alignments of given translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.console import check_stdin
from nmt.cli.options import SourceLang, TargetLang, only_model
from nmt.cli.recipe import PluginFlag, TrustFlag, import_named
from nmt.cli.score.by_model import (
    BLOCK,
    load_fastest_scorer,
    load_in_torch,
    open_model,
    unequal_lines,
)
from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import say

if TYPE_CHECKING:
    from nmt.inference import LineTranslator

Link = tuple[int, int]

EXAMPLE = (
    "Examples:\n\n"
    "  nmt align --source corpus/train.en --target corpus/train.de > corpus/train.align\n\n"
    "  nmt align --model averaged --source input.txt --target test.de > test.align"
)


def align(
    source: Annotated[Path, typer.Option(help="The source; plain, .gz, .xz or .zst.")],
    target: Annotated[
        Path, typer.Option(help="Its translation, line by line; plain, .gz, .xz or .zst.")
    ],
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="PATH",
            help="A run (its best checkpoint) or one of its checkpoints, whose attention is used.  "
            "[default: learn from these pairs alone]",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The decoder layer of a Transformer whose attention is used, from 1.  [default: "
            "alignment_layer of the run's model]",
            show_default=False,
        ),
    ] = None,
    max_pairs: Annotated[
        int,
        typer.Option(min=1, help="Without --model: most pairs to learn from, drawn at random."),
    ] = 500_000,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Align the words of given translations with the words of their sources.

    Prints a line for each pair, in Pharaoh format: S-T for the source word S and the target word T.
    Words are separated by white space and numbered from 0. Without --model the alignments are
    learned from the pairs themselves: IBM model 1, then a hidden Markov model, in both directions,
    made symmetric by grow-diag-final-and; a pair with more than 200 words on a side gets no links.
    With --model each target word that has subwords is
    aligned with the source word to which the model attends most while it predicts them.
    """
    check_stdin(source, target)
    import_named(plugin)
    if (chosen := only_model(model)) is None:
        if layer is not None:
            raise NmtError("--layer is a layer of a model; give --model, too")
        aligned = _align_corpus(source, target, max_pairs)
    else:
        # An export has the attention of one layer.
        load = load_fastest_scorer if layer is None else load_in_torch
        translator = open_model(chosen, device, trust_plugins, target_lang, source_lang, load)
        say(f"engine {translator.engine}")
        aligned = _align_by_model(translator, layer, source, target)
    pairs = total = empty = 0
    for links in aligned:
        print(" ".join(f"{source_word}-{target_word}" for source_word, target_word in links))
        pairs, total, empty = pairs + 1, total + len(links), empty + (not links)
    say(f"aligned {pairs:,} pairs: {total:,} links, {empty:,} pairs without")


def _align_by_model(
    translator: LineTranslator, layer: int | None, source: Path, target: Path
) -> Iterator[Sequence[Link]]:
    """Yield the links of each pair, by the attention of a model."""
    if layer is not None:
        from nmt.inference import Translator

        assert isinstance(translator, Translator)
        translator.model.align_by(layer)
    for sources, targets in _blocks(source, target):
        yield from translator.align(sources, targets)


def _align_corpus(source: Path, target: Path, max_pairs: int) -> Iterator[Sequence[Link]]:
    """Yield the links of each pair, learned from the pairs."""
    from nmt.preprocess.alignment.aligner import CorpusAligner

    for path in (source, target):
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise NmtError(
                f"{path}: without --model the pairs are read twice; give files, not a pipe or stdin"
            )
    pairs = (pair for block in _blocks(source, target) for pair in zip(*block, strict=True))
    aligner = CorpusAligner(pairs, max_pairs)
    for sources, targets in _blocks(source, target):
        yield from aligner.align(sources, targets)


def _blocks(source: Path, target: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield equally many lines of both files.

    Raises:
        NmtError: the files differ in their number of lines.
    """
    lines = Lines.open(source), Lines.open(target)
    ended: list[str] = []
    # zip would end with the shorter file, and hide that lines are missing.
    for sources, targets in zip_longest(*(side.blocks(BLOCK) for side in lines), fillvalue=ended):
        if len(sources) != len(targets):
            raise unequal_lines(*lines)
        yield sources, targets

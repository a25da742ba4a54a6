"""Options of ``nmt translate`` that set no key of the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

INPUT = "Input and output"
SPEED = "Speed"

Text = Annotated[
    Path | None,
    typer.Argument(
        metavar="TEXT",
        help="Text, one sentence a line; plain, .gz, .xz or .zst; - for stdin.  [default: -]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input",
        "-i",
        metavar="FILE",
        help="Another way to give TEXT.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File that appears when all lines are translated.  [default: stdout]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        envvar="NMT_MODEL",
        help="A run (its best checkpoint), one of its checkpoints, or an export. Several models, "
        "each with a --model of its own, form an ensemble.  [default: the recipe's "
        "train.save_dir]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Engine that searches: nmt; ctranslate2 (whose beam search stops as first_beam does); "
        "or auto: ctranslate2 where all settings mean the same there, else nmt.  [default: "
        "ctranslate2 for an export, else nmt]",
        show_default=False,
        rich_help_panel=SPEED,
    ),
]
Prefix = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Beginnings of translations: line n is a prefix of the translation of line n, or "
        "empty. The translation may extend the last word of a prefix.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Require = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Phrases that must appear: line n holds those of translation n, separated by tabs. "
        "Needs --strategy lexical_beam.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Avoid = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Phrases that must not appear: line n holds those of translation n, separated by "
        "tabs.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
JsonInput = Annotated[
    bool,
    typer.Option(
        "--json-input",
        help="Read a JSON object from each line: its text, and what is wanted of its translation. "
        "docs/outputs.md describes the fields.",
        rich_help_panel=INPUT,
    ),
]
NBest = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Write N different translations of each line, or fewer if the model has no more. N is "
        "at most the beam size or the number of samples.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Write a JSON object for each line.", rich_help_panel=INPUT),
]
Alignments = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="Add word alignments to the JSON objects, by the model's attention.",
        rich_help_panel=INPUT,
    ),
]
AlignmentUnit = Annotated[
    Literal["words", "pieces"] | None,
    typer.Option(
        help="Units that --alignments links.  [default: pieces if a language of the model has no "
        "spaces between words, else words]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Markup = Annotated[
    Literal["html", "xliff"] | None,
    typer.Option(
        help="Markup of the lines: html, or the inline elements of xliff. The text is translated "
        "without tags, and the tags are put around the words they belong to.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or auto.", rich_help_panel=SPEED)
]
PrecisionName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Precision of the computation: fp32, bf16, fp16, int8 (linear layers on a CPU), or "
        "auto: bf16 or fp16 on a device that is fast at it, else fp32. Only with fp32, and int8 of "
        "a run that was calibrated, is a line's translation independent of its batch.",
        rich_help_panel=SPEED,
    ),
]
Shortlist = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="Search only among the tokens of the run's shortlist, which nmt shortlist learns; "
        "of an ensemble, that of the first run.",
        rich_help_panel=SPEED,
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the model's step on a GPU (torch.compile), which takes minutes.",
        rich_help_panel=SPEED,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes that share the batches, each with one thread; 1 for one process with all "
        "threads.  [default: one per core of a CPU, 1 on a GPU]",
        show_default=False,
        rich_help_panel=SPEED,
    ),
]

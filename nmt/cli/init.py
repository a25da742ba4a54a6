"""The command ``nmt init``."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.console import show
from nmt.cli.recipe import RECIPE
from nmt.errors import NmtError
from nmt.io.files import check_writable
from nmt.messages import say

EXAMPLE = "Example: nmt init corpus/train -s en -t de --minutes 10"


LEAST_MINUTES, MOST_MINUTES = 0.01, 1e6


def _check_minutes(minutes: float | None) -> float | None:
    """Return the minutes of a training; refuse too few, too many, and NaN."""
    if minutes is None or LEAST_MINUTES <= minutes <= MOST_MINUTES:
        return minutes
    raise typer.BadParameter(
        f"{minutes:g} is not between {LEAST_MINUTES} and {MOST_MINUTES:,.0f}; leave it out to "
        "choose the time by the size of the corpus"
    )


Train = Annotated[
    list[str],
    typer.Argument(
        metavar="PREFIX...",
        help="Training corpus: the files PREFIX.LANG of both languages, plain or .gz, .xz, "
        ".zst; or FILE.tsv with source, tab, target on a line.",
        show_default=False,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        callback=_check_minutes,
        help="Minutes of training at the speed measured now, without preprocessing and "
        "validation; on a slower machine up to twice as many.  [default: by the size of the "
        "corpus]",
        show_default=False,
    ),
]
Valid = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        help="Validation set.  [default: look next to the corpus, or set some of its pairs aside]",
        show_default=False,
    ),
]
Test = Annotated[
    str | None,
    typer.Option(metavar="PREFIX", help="Test set.  [default: likewise]", show_default=False),
]


def init(
    train: Train,
    source_lang: Annotated[
        str, typer.Option("--source-lang", "-s", metavar="LANG", help="Language to translate from.")
    ],
    target_lang: Annotated[
        str, typer.Option("--target-lang", "-t", metavar="LANG", help="Language to translate into.")
    ],
    minutes: Minutes = None,
    valid: Valid = None,
    test: Test = None,
    output: Annotated[Path, typer.Option(metavar="FILE", help="Recipe to write.")] = RECIPE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the recipe on stdout, and write nothing.")
    ] = False,
) -> None:
    """Write a recipe for a corpus and this machine, with a reason next to each value.

    Reads the corpus, uses validation and test sets next to it (valid, val or dev; test) or sets
    some of its pairs aside in held-out/, trains models of several sizes for some seconds each, and
    writes nmt.yaml. After that nmt preprocess and nmt train need no option. The corpus itself is
    not changed.
    """
    if not source_lang or not target_lang:
        raise typer.BadParameter(
            "a language is empty; give the ends of the files' names, for example -s en"
        )
    if output.exists() and not dry_run:
        raise NmtError(
            f"{output}: exists already; move it away, give another --output FILE, or print the "
            "recipe with --dry-run"
        )
    if not dry_run:
        # Now, and not after the time that measuring takes.
        check_writable(output.parent)
    from nmt.advice.advise import advise

    named = {"valid": valid, "test": test}
    given = {split: path for split, path in named.items() if path is not None}
    languages = source_lang, target_lang
    advice = advise(tuple(train), languages, minutes, say, writes=not dry_run, given=given)
    if dry_run:
        show(advice.text.rstrip("\n"))
        return
    for path in advice.write(output):
        print(path)
    # All but the first line, which says who wrote the recipe.
    say("\n".join(advice.head[1:]))
    config = "" if output == RECIPE else f" --config {shlex.quote(str(output))}"
    say(f"next: nmt preprocess{config} && nmt train{config}")

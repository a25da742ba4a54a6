"""The command ``nmt testset``."""

from typing import Annotated, Literal

import typer

EXAMPLE = "Example: nmt testset wmt14/full"


def print_testset(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a test set; print all names without it.", show_default=False),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            "--language-pair",
            "-l",
            metavar="S-T",
            help="Source and target language; print the pairs of the test set without it.",
            show_default=False,
        ),
    ] = None,
    side: Annotated[Literal["source", "reference"], typer.Option(help="Text to print.")] = "source",
) -> None:
    """Print a test set by its name, or the names of all.

    For example, "nmt testset wmt14/full -l en-de | nmt translate" translates newstest2014, and
    "nmt score --testset wmt14/full -l en-de" scores the translations.

    sacreBLEU downloads a test set on first use into ~/.sacrebleu, or into the directory that the
    environment variable SACREBLEU names.
    """
    from nmt.evaluation import testsets

    if pair is not None and name is None:
        raise typer.BadParameter("--language-pair is that of a test set: give its name, too")
    if side != "source" and pair is None:
        raise typer.BadParameter("--side is of one language pair: give --language-pair, too")
    if name is None:
        lines = testsets.names()
    elif pair is None:
        lines = testsets.language_pairs(name)
    else:
        test_set = testsets.by_name(name, pair)
        lines = list(test_set.references if side == "reference" else test_set.sources or ())
    for line in lines:
        print(line)

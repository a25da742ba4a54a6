"""``nmt tune``: find weights of the features of an n-best list, for a metric."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer
import yaml

from nmt.cli.console import await_stdin
from nmt.cli.recipe import PluginFlag, import_named
from nmt.cli.score.by_model import unequal_lines
from nmt.cli.score.references import metric_for
from nmt.cli.score.rescore import GREATEST, NBestEntry, rescored
from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import say, warn

FEW_LINES = 100
"""With fewer lines, the weights are likely to overfit."""

EXAMPLE = "Example: nmt tune --reference test.de list.txt > weights.yaml"

NBest = Annotated[
    Path | None,
    typer.Argument(
        help="The list, with all features, by the lines of the references; plain, .gz, .xz or "
        ".zst; - for stdin.  [default: -]",
        show_default=False,
    ),
]
Reference = Annotated[
    list[Path],
    typer.Option(
        "--reference",
        "-r",
        metavar="FILE",
        help="References, untouched text; plain, .gz, .xz or .zst. Repeat for several references.",
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(help="Source, for metrics that need it, such as comet.", show_default=False),
]
TargetLang = Annotated[
    str | None,
    typer.Option(
        "--target-lang",
        "-t",
        metavar="LANG",
        help="Language of the references, from which BLEU chooses its tokeniser.  [default: the "
        "end of the "
        "name of --reference]",
        show_default=False,
    ),
]
MetricName = Annotated[
    str, typer.Option("--metric", "-m", metavar="NAME", help="Metric of the whole text to improve.")
]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Features to weigh.  [default: all of the list]",
        show_default=False,
    ),
]


def tune(
    reference: Reference,
    n_best: NBest = None,
    source: Source = None,
    target_lang: TargetLang = None,
    metric: MetricName = "bleu",
    features: Features = None,
    restarts: Annotated[int, typer.Option(metavar="N", min=0, help="Random beginnings.")] = 10,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed.")] = 1,
    plugin: PluginFlag = None,
) -> None:
    """Find weights of the features of an n-best list.

    Prints one weight for each feature, a line each, for nmt rescore --weights. With these weights,
    the first translations of the list have the best score by a metric. The absolute values add up
    to 1. Messages give the metric before and after.
    """
    import_named(plugin)
    listed = n_best or Path("-")
    await_stdin(*reference, source, listed)
    first = reference[0]
    chosen = metric_for(metric, first, target_lang)
    files = [Lines.open(path) for path in (*reference, source) if path is not None]
    texts = [lines.read() for lines in files]
    if not texts[0]:
        raise NmtError(f"{first}: no references; give a line for each source line of the list")
    if len({*map(len, texts)}) > 1:
        raise unequal_lines(*files)
    from nmt.evaluation.testsets import by_sentence

    references, sources = by_sentence(texts[: len(reference)]), texts[len(reference) :]
    lists = _lists(listed, len(references), first)
    names = _names(lists, features, listed)
    if len(references) < FEW_LINES:
        warn(
            f"{first}: {len(references)} lines are few: the weights may fit these alone; take "
            "a validation set of some hundred lines"
        )
    from nmt.evaluation.tuning import TuningSet

    candidates = [candidate for row in lists for candidate in row]
    values = [
        candidate.values(names, f"{listed}: a translation of line {candidate.number}")
        for candidate in candidates
    ]
    if not all(abs(value) <= GREATEST for value in chain.from_iterable(values)):
        raise NmtError(
            f"{listed}: a feature is not a number from -{GREATEST:g} to {GREATEST:g}; leave it out "
            "by --features"
        )
    numbers = [candidate.number for candidate in candidates]
    counts = chosen.checked_counts(
        [candidate.text for candidate in candidates],
        [references[number] for number in numbers],
        [sources[0][number] for number in numbers] if sources else None,
    )
    tuning_set = TuningSet(values, counts, [*map(len, lists)], chosen)
    weights, value = tuning_set.tune(seed, restarts)
    before = tuning_set.first_value()
    say(f"{chosen.name} of the first translations: {before:.2f}; with these weights: {value:.2f}")
    print(yaml.safe_dump(dict(zip(names, weights.tolist(), strict=True)), sort_keys=False), end="")


def _lists(path: Path, lines: int, reference: Path) -> list[list[NBestEntry]]:
    """Return the translations of each line; an empty translation for a missing line."""
    listed = Lines.open(path)
    # One more is enough to refuse it; a mistyped number could make millions.
    lists = list(islice(rescored(listed), lines + 1))
    if len(lists) > lines:
        raise NmtError(
            f"{listed.name}: a number above {lines - 1}, but {reference} has {lines} lines; "
            "numbers count from 0"
        )
    if not lists:
        raise NmtError(f"{listed.name}: no translations; give an n-best list")
    lists += [[] for _ in range(lines - len(lists))]
    if missing := lists.count([]):
        warn(
            f"{listed.name}: no translations of {missing:,} of the {lines:,} lines of {reference}; "
            "they count as empty"
        )
    # The weighted sum needs every feature of an empty translation, too.
    zeros = {name: [0.0] for name in next(filter(None, lists))[0].features}
    return [row or [NBestEntry(number, "", zeros, 0.0)] for number, row in enumerate(lists)]


def _names(lists: list[list[NBestEntry]], features: str | None, path: Path) -> list[str]:
    """Return the names of the features to weigh."""
    names = [*dict.fromkeys(features.split(",") if features else lists[0][0].features)]
    if not names:
        raise NmtError(f"{path}: the translations have no features; add some with nmt rescore")
    return names

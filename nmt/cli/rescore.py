"""``nmt rescore``: add a feature to an n-best list, of a model or a metric, and sort the list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.chosen_model import only_model
from nmt.cli.console import await_stdin
from nmt.cli.direction import PANEL, SourceLang
from nmt.cli.n_best import ScoreFunction, parse_weights, rescored
from nmt.cli.plugins import PluginFlag, TrustFlag, import_named
from nmt.cli.references import metric_for
from nmt.cli.score_by_model import open_model
from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import warn

if TYPE_CHECKING:
    from nmt.inference import Translator

EXAMPLE = """Examples:
nmt rescore --model averaged --source input.txt list.txt > rescored.txt
nmt rescore --weights LogProbability=1 --best list.txt > likeliest.txt
nmt rescore --reference test.de --weights chrf=1 --best list.txt > nearest.de"""


Model = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        help="A run (its best checkpoint) or one of its checkpoints.",
        show_default=False,
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(
        help="Source text of the list, for --model, and for metrics that need it, such as comet; "
        "plain, .gz, .xz or .zst.",
        show_default=False,
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        help="References: the feature is the --metric of each translation instead of its "
        "log-probability by --model; plain, .gz, .xz or .zst.",
        show_default=False,
    ),
]
MetricName = Annotated[
    str, typer.Option(metavar="NAME", help="Metric of single sentences, for --reference.")
]
NBest = Annotated[
    Path | None,
    typer.Argument(
        help='The list, by the lines of the source: "id ||| text ||| features ||| score"; '
        "plain, .gz, .xz or .zst; - for stdin.  [default: -]",
        show_default=False,
    ),
]


def _check_feature(name: str | None) -> str | None:
    """Return the name of a feature; refuse one that the list or --weights could not be read with.

    Raises:
        BadParameter: the name is empty or holds white space, "=", "," or "|||".
    """
    if name is None or (re.fullmatch(r"[^\s=,]+", name) and "|||" not in name):
        return name
    raise typer.BadParameter(
        f"{name!r}: expected a name without white space, equals signs, commas and |||"
    )


Feature = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=_check_feature,
        help="Name of the new feature.  [default: Model, with --reverse Reverse, with "
        "--reference the name of the metric]",
        show_default=False,
    ),
]
TargetLang = Annotated[
    str | None,
    typer.Option(
        "--target-lang",
        "-t",
        metavar="LANG",
        help="Language to translate into; with --reference, the language of the references, by "
        "which BLEU finds words.  [default: the only one of the model, or the end of the name of "
        "--reference]",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Reverse = Annotated[
    bool,
    typer.Option(
        "--reverse",
        help="The model translates in the other direction: the feature is the log-probability of "
        "the source, given the translation.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=NUMBER,...",
        help="The score becomes the weighted sum of these features; sort by it. Or a file of "
        "weights, as nmt tune writes it.",
        show_default=False,
    ),
]


def rescore(
    model: Model = None,
    source: Source = None,
    n_best: NBest = None,
    reference: Reference = None,
    metric: MetricName = "chrf",
    feature: Feature = None,
    reverse: Reverse = False,
    weights: Weights = None,
    best: Annotated[
        bool, typer.Option("--best", help="Print the text that is first for each line, no list.")
    ] = False,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Score an n-best list by a model, or by a metric and references.

    Prints the list, as nmt translate --n-best writes it, with one more feature: the log-probability
    that the model gives to each translation, or with --reference its score by a metric. With
    --weights the translations of a line are sorted by the weighted sum of features; alone,
    --weights adds no feature.
    docs/outputs.md describes the lines.
    """
    listed = n_best or Path("-")
    weighted = parse_weights(weights)
    import_named(plugin)
    chosen = only_model(model)
    scores: ScoreFunction | None = None
    name = metric
    if reference is not None:
        if chosen is not None or reverse:
            raise typer.BadParameter("give either --reference, or --model and --source")
        scores = _scores_by_metric(metric, reference, target_lang)
    elif chosen is not None and source is not None:
        translator = open_model(chosen, device, trust_plugins, target_lang, source_lang)
        if reverse and not translator.model.reads_source:
            raise NmtError(
                f"{chosen}: a language model reads no source, so that with --reverse all "
                "translations of a line would score the same; leave out --reverse"
            )
        scores = _scores_by_model(translator, reverse)
        name = "Reverse" if reverse else "Model"
    elif chosen is not None or reverse or not weighted:
        raise typer.BadParameter("give --model and --source, or --reference, or --weights alone")
    await_stdin(reference, source, listed)
    texts = [path for path in (reference, source) if path is not None]
    beside = [Lines.open(path) for path in texts]
    missing, lists = 0, Lines.open(listed)
    for candidates in rescored(lists, beside, scores, feature or name, weighted):
        missing += not candidates
        if best:
            print(candidates[0].text if candidates else "")
        else:
            print(*candidates, sep="\n", end="\n" if candidates else "")
    if missing:
        of, what = f" of {texts[0]}" if texts else "", "; they are printed empty" if best else ""
        warn(f"{lists.name}: lines{of} without translations: {missing:,}{what}")


def _scores_by_model(translator: Translator, reverse: bool) -> ScoreFunction:
    """Return log-probabilities, with `reverse` those of the sources (Yee et al. 2019)."""

    def scores(sources: list[str], targets: list[str]) -> list[float]:
        pair = (targets, sources) if reverse else (sources, targets)
        return [sum(values) for values in translator.score(*pair)]

    return scores


def _scores_by_metric(name: str, reference: Path, target_lang: str | None) -> ScoreFunction:
    """Return scores of single sentences, with references and perhaps their sources."""
    chosen = metric_for(name, reference, target_lang).for_sentences()
    return lambda references, *texts: [
        chosen.compute([row])[0]
        for row in chosen.checked_counts(texts[-1], references, *texts[:-1])
    ]

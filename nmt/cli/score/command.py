"""``nmt score``: score translations by metrics, with signatures, or by a model's probability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmt.cli.console import await_stdin
from nmt.cli.options import RecipeSettings, SourceLang, only_model, recipe_flags
from nmt.cli.recipe import import_named
from nmt.cli.score.by_model import open_model, score_by_model
from nmt.cli.score.references import References, read_systems, warn_of_unspaced
from nmt.cli.score.report import ScoreReport
from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import say
from nmt.recipe.config import build

if TYPE_CHECKING:
    from nmt.evaluation.metrics import Metric

EXAMPLE = "Example: nmt score --reference test.de --metric bleu --metric ter output.txt"

INPUT = "Input"
METRICS = "Metrics"
SIGNIFICANCE = "Significance"
BY_MODEL = "Score by a model"
OUTPUT = "Output"

FLAGS = {METRICS: {"--metric -m": "score.metrics"}}

MOST_SAMPLES = 1_000_000
"""Largest number of samples; each takes 8 bytes of memory for a line of the test set."""

Hypotheses = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="HYPOTHESES",
        help="Translations, detokenised, one a line; plain, .gz, .xz or .zst; a file for each "
        "system; - for stdin.  [default: -]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Reference = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        "-r",
        metavar="FILE",
        help="References, untouched text; plain, .gz, .xz or .zst. Repeat for several references.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Dataset whose raw references to use; with --model, its raw source.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Split of --data: test or valid.  [default: test]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
NamedTestSet = Annotated[
    str | None,
    typer.Option(
        "--testset",
        metavar="NAME",
        help="Test set that sacreBLEU knows, such as wmt14/full; sacrebleu --list prints all.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
LanguagePair = Annotated[
    str | None,
    typer.Option(
        "--language-pair",
        "-l",
        metavar="S-T",
        help="Source and target language of --testset, such as en-de.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
TargetLang = Annotated[
    str | None,
    typer.Option(
        "--target-lang",
        "-t",
        metavar="LANG",
        help="Language of the translations, from which BLEU chooses its tokeniser; also chooses "
        "the direction of a multilingual --data or --model.  [default: the language of --data or "
        "--testset, or the end of the name of --reference]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Source of the translations, for --model and comet; plain, .gz, .xz or .zst. --data "
        "and --testset have a source of their own.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Alignments = Annotated[
    Path | None,
    typer.Option(
        metavar="GOLD",
        help="Gold word alignments: score alignments, such as nmt align prints, by the alignment "
        "error rate.",
        show_default=False,
        rich_help_panel=METRICS,
    ),
]
ByDocument = Annotated[
    bool,
    typer.Option(
        "--by-document",
        help="Score documents as if they were sentences; blank lines of the references divide "
        "them.",
        rich_help_panel=METRICS,
    ),
]
SentenceLevel = Annotated[
    bool,
    typer.Option(
        "--sentence-level",
        help="Print a score for each sentence instead of a score for the whole text.",
        rich_help_panel=METRICS,
    ),
]
Paired = Annotated[
    Literal["bs", "ar"] | None,
    typer.Option(
        help="Compare each system with the first, by paired bootstrap resampling (bs) or "
        "approximate randomisation (ar).",
        show_default=False,
        rich_help_panel=SIGNIFICANCE,
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="PREFIX",
        help="Average the systems whose file names begin so, such as runs of one recipe with "
        "several seeds, and compare each group with the first. Repeat for each group.",
        show_default=False,
        rich_help_panel=SIGNIFICANCE,
    ),
]
Confidence = Annotated[
    bool,
    typer.Option(
        "--confidence",
        help="Estimate 95% intervals by bootstrap resampling.",
        rich_help_panel=SIGNIFICANCE,
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=MOST_SAMPLES,
        help="Number of samples.  [default: 1000 with bs, 10000 with ar]",
        show_default=False,
        rich_help_panel=SIGNIFICANCE,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        envvar="SACREBLEU_SEED",
        help="Random seed of the samples.",
        rich_help_panel=SIGNIFICANCE,
    ),
]
ModelPath = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help="Run or checkpoint: print the log-probability that it gives to each translation.",
        show_default=False,
        rich_help_panel=BY_MODEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --model: cpu, cuda, cuda:N or auto.  [default: auto]",
        show_default=False,
        rich_help_panel=BY_MODEL,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print a JSON object on each line.", rich_help_panel=OUTPUT),
]
TableForm = Annotated[
    Literal["text", "markdown", "latex"] | None,
    typer.Option(
        help="Print a table.  [default: text for several systems]",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


@recipe_flags(FLAGS)
def score(
    hypotheses: Hypotheses = None,
    reference: Reference = None,
    data: Data = None,
    split: Split = None,
    testset: NamedTestSet = None,
    pair: LanguagePair = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    source: Source = None,
    *,
    settings: RecipeSettings,
    alignments: Alignments = None,
    by_document: ByDocument = False,
    sentence_level: SentenceLevel = False,
    group: Groups = None,
    paired: Paired = None,
    confidence: Confidence = False,
    samples: Samples = None,
    seed: Seed = 12345,
    model: ModelPath = None,
    device: Device = None,
    as_json: AsJson = False,
    table: TableForm = None,
) -> None:
    """Score translations against references, or by a model.

    Prints one line per metric: name, value, parts of the value, and signature. Values with
    different signatures must not be compared. Settings of a metric are set in the recipe, or with
    --set "score.metrics=[{name: bleu, lowercase: true}]". docs/outputs.md describes the parts of
    each metric, tables, the fields of --json, and the scores of --alignments and --model.
    """
    files = hypotheses or [Path("-")]
    given = reference or []
    await_stdin(*given, source, alignments, *files)
    references = References(given, source, data, split, testset, pair, target_lang, source_lang)
    report = ScoreReport(
        group=group or (),
        paired=paired,
        confidence=confidence,
        samples=samples,
        seed=seed,
        by_document=by_document,
        sentence_level=sentence_level,
        as_json=as_json,
        table=table,
    )
    if (chosen := only_model(model)) is None:
        if device is not None:
            raise typer.BadParameter("--device goes with --model")
        _score_by_metrics(files, references, alignments, report, settings)
        return
    if reference or settings.flags["score.metrics"] or alignments or report.needs_metrics:
        raise typer.BadParameter(
            "--model goes with no --reference, --metric, --alignments, --by-document, --group, "
            "--paired, --confidence, --samples, --sentence-level or --table"
        )
    device = "auto" if device is None else device
    _score_by_model(chosen, device, files, references, settings, as_json)


def _score_by_model(
    model: Path,
    device: str,
    files: Sequence[Path],
    references: References,
    settings: RecipeSettings,
    as_json: bool,
) -> None:
    """Check the options, and print the log-probabilities that the model gives."""
    references.check_source()
    if len(files) > 1:
        raise typer.BadParameter("--model scores one file at a time")
    sources, language = references.source_lines()
    import_named(settings.plugins)
    languages = references.target_lang, references.source_lang
    translator = open_model(model, device, settings.trust_plugins, *languages)
    if language == translator.languages[0] != translator.languages[1]:
        raise NmtError(
            f"{sources.name}: its references are in {language}, from which {model} translates; "
            "give a test set of the model's direction, or its text with --source"
        )
    score_by_model(translator, sources, Lines.open(files[0]), as_json)
    say(f"engine {translator.engine}")


def _score_by_metrics(
    files: Sequence[Path],
    references: References,
    alignments: Path | None,
    report: ScoreReport,
    settings: RecipeSettings,
) -> None:
    """Check the options, and print the scores of metrics."""
    given: Any = settings.flags["score.metrics"]
    for metric in given or ():
        # Settings of a metric in braces may hold commas.
        if "," in metric and "{" not in metric:
            names = " ".join(f"--metric {name}" for name in metric.split(","))
            raise typer.BadParameter(f"--metric {metric}: give each metric its own flag, {names}")
    references.check(alignments)
    if alignments is not None and settings.flags["score.metrics"]:
        raise typer.BadParameter("--alignments goes with no --metric: the metric of links is aer")
    if alignments is not None and report.by_document:
        raise typer.BadParameter("--alignments goes with no --by-document: links are of sentences")
    report.check(files)
    if references.source is not None and not references.reference:
        raise typer.BadParameter(
            "--source goes with --reference or --model; --data and --testset have their own source"
        )
    from nmt.evaluation import Metric, ScoreConfig
    from nmt.evaluation.testsets import reference_rows

    for file in files:
        if str(file) in Metric.registry and not file.exists():
            raise typer.BadParameter(f"{file} is a metric, not a file; use --metric {file}")
    chosen = build(ScoreConfig, settings.load().section("score"), "score").metrics
    if alignments is not None:
        test_set = References([alignments]).test_set()
        systems = read_systems(files, test_set)
        gold = [link for [link] in reference_rows(test_set.references)]
        metrics = _metrics_of_links({test_set.name: gold, **systems})
    else:
        test_set = references.test_set()
        language = references.target_lang or test_set.target_lang
        metrics = [metric.for_language(language) for metric in chosen]
        warn_of_unspaced(test_set, metrics)
        systems = read_systems(files, test_set)
    report.write(systems, test_set, metrics)


def _metrics_of_links(files: dict[str, Sequence[str]]) -> list[Metric]:
    """Return the metric of alignments, after checking every line of the files.

    Raises:
        NmtError: a line holds a word that is not a link.
    """
    from nmt.evaluation.alignments import AlignmentErrorRate, check_lines

    check_lines(files)
    return [AlignmentErrorRate()]

"""``nmt score``: score translations by metrics, with signatures, or by a model's probability."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt.cli.console import check_stdin
from nmt.cli.plugins import PluginFlag, TrustFlag, import_named
from nmt.cli.recipe import ConfigFlag, SetFlag, load
from nmt.cli.score_by_model import open_model, score_by_model
from nmt.errors import NmtError
from nmt.io.lines import COMPRESSED, Lines
from nmt.languages import is_unspaced
from nmt.messages import say, warn
from nmt.recipe.config import build

if TYPE_CHECKING:
    from nmt.evaluation.comparison import Resampling
    from nmt.evaluation.metrics import Metric
    from nmt.evaluation.testsets import TestSet

EXAMPLE = "Example: nmt score --reference test.de --metric bleu --metric ter output.txt"

Systems = dict[str, list[str]]


def score(
    hypotheses: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Translations, detokenised, one a line; plain, .gz, .xz or .zst; a file "
            "for each system. Default, and -: stdin.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            "-r",
            help="References, untouched text; plain, .gz, .xz or .zst.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Binarized data whose raw references to use; with --model, its raw source.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of --data: test or valid.")] = "test",
    testset: Annotated[
        str | None,
        typer.Option(
            "--testset",
            metavar="NAME",
            help="A test set that sacreBLEU knows, such as wmt14/full; see nmt testset.",
            show_default=False,
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            "--language-pair",
            "-l",
            metavar="S-T",
            help="With --testset: from which language to which, such as en-de.",
            show_default=False,
        ),
    ] = None,
    target_lang: Annotated[
        str | None,
        typer.Option(
            "--target-lang",
            "-t",
            metavar="LANG",
            help="Language of the translations, by which BLEU finds words. Default: that of --data "
            "or --testset, or of the end of the name of --reference.",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="bleu, chrf, chrf++, ter, tokenized_bleu (text as it is, like multi-bleu.perl), "
            "paper_bleu (Moses-tokenised, compounds split) or comet (needs nmt-toolkit[comet]); "
            "may be given several times. Default: score.metrics of the recipe, or bleu and chrf.",
            show_default=False,
        ),
    ] = None,
    paired: Annotated[
        Literal["bs", "ar"] | None,
        typer.Option(
            help="Compare each system with the first, by paired bootstrap resampling (bs) or "
            "approximate randomisation (ar).",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Estimate 95% intervals by bootstrap resampling.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="How many are drawn [bs: 1000, ar: 10000].", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=1, envvar="SACREBLEU_SEED", help="Of the samples.")
    ] = 12345,
    sentence_level: Annotated[
        bool, typer.Option("--sentence-level", help="Score every sentence instead of all of them.")
    ] = False,
    alignments: Annotated[
        Path | None,
        typer.Option(
            metavar="GOLD",
            help="Gold word alignments; what is scored are alignments, such as nmt align prints.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="A run or checkpoint: print the log-probability it gives to each translation.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="What was translated, for --model and comet; plain, .gz, .xz or .zst. Not with "
            "--data and --testset, which know it.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="With --model: cpu, cuda, cuda:N or auto.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line of the output.")
    ] = False,
    table: Annotated[
        Literal["text", "markdown", "latex"] | None,
        typer.Option(
            help="Print a table; of several systems text is the default.", show_default=False
        ),
    ] = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Score translations against references, or by a model.

    Prints one line per metric: name, value, parts of the value, and signature.
    Values with different signatures must not be compared. Settings of a metric are set in the
    recipe, or with --set "score.metrics=[{name: bleu, lowercase: true}]".

    The tokeniser of BLEU follows the target language, unless the recipe sets it (tokenize of the
    metric): zh for Chinese, ja-mecab and ko-mecab for Japanese and Korean (characters without
    the packages of sacrebleu[ja] and sacrebleu[ko]), characters for Thai, Lao, Khmer and Burmese,
    13a for all others. TER splits Chinese and Japanese.

    The parts of BLEU are the precisions of 1- to 4-grams in per cent, the brevity penalty (BP), and
    the lengths of hypotheses and references in tokens (hyp_len, ref_len, and their ratio). The
    parts of TER are the number of edits and the length of the references in words. chrF is followed
    by its full name. COMET is the mean of the model's scores of the sentences, times 100.

    Several systems are printed as a table. A column holds values of one signature, printed below
    the table; if the recipe has one metric with several settings, its columns are numbered. With
    --paired, p is the probability that chance alone makes a difference from the first system as
    large. With --confidence, and with --paired bs, the mean over the samples is printed with half
    the width of the interval that holds 95% of them. All samples are those of the command
    sacrebleu.

    With --json a line is an object with the fields system, metric, value (in per cent, not
    rounded), details (parts of the value), signature, and higher_is_better (false for an error
    rate). If samples were drawn, it also has samples (their kind, number and seed), mean and
    interval, p_value and baseline.

    With --sentence-level a line is printed for each sentence, with the value of each metric for
    each system, separated by tabs; the columns are explained on stderr. BLEU then uses the
    effective order. With --json each value is an object as above, with the field line, from 1.

    With --alignments the value is aer, the alignment error rate (Och and Ney 2003) of links between
    words. A line of both files holds the links of one pair of sentences, S-T for the words S of the
    source and T of the target, from 0; a line of GOLD may also hold S?T, a link that is possible
    but not sure. Details are precision (links that are possible), recall (sure links that were
    found), and the numbers of links and of sure links.

    With --model a line is printed for each translation: the natural logarithm of the probability
    that the model gives to the translation and its end of sentence, given the source line. With
    --json it is an object with the fields log_probability, mean_log_probability (per token, the end
    included), tokens (pieces; the last is the end), token_log_probabilities, words (of the text, as
    spaces divide it), and word_log_probabilities (without the end).
    """
    files = hypotheses or [Path("-")]
    check_stdin(reference, source, alignments, *files)
    if (testset is None) != (pair is None):
        raise typer.BadParameter("--testset and --language-pair go together")
    known = {"--data": data, "--testset": testset}
    if model is not None:
        _check_one_is_given({"--source": source, **known}, "with --model, ")
        is_measured = reference or metric or alignments
        if is_measured or paired or confidence or samples or sentence_level or table:
            raise typer.BadParameter(
                "--model goes with no --reference, --metric, --alignments, --paired, --confidence, "
                "--samples, --sentence-level or --table"
            )
        if len(files) > 1:
            raise typer.BadParameter("--model scores one file at a time")
        named = _named_test_set(data, split, testset, pair)
        sources = Lines.open(source) if named is None else _source_lines(named)
        import_named(plugin)
        translator = open_model(model, device, trust_plugins)
        score_by_model(translator, sources, Lines.open(files[0]), as_json)
        return
    _check_one_is_given(
        {"--reference": reference, **known, "--alignments": alignments, "--model": model}
    )
    if alignments is not None and metric:
        raise typer.BadParameter("--alignments goes with no --metric: the metric of links is aer")
    if as_json and table is not None:
        raise typer.BadParameter("give either --json or --table")
    if sentence_level and (paired or confidence or table):
        raise typer.BadParameter("--sentence-level goes with no --paired, --confidence or --table")
    if paired and len(files) == 1:
        raise typer.BadParameter("--paired compares systems: give two or more, the baseline first")
    if samples is not None and not (paired or confidence):
        raise typer.BadParameter("--samples goes with --paired or --confidence")
    if source is not None and reference is None:
        raise typer.BadParameter("--source goes with --reference or --model; others have their own")
    from nmt.evaluation import ScoreConfig
    from nmt.evaluation.comparison import Resampling

    flags = {"score.metrics": metric or None}
    recipe = load(config, set_, flags, plugins=plugin, trust_plugins=trust_plugins)
    chosen = build(ScoreConfig, recipe.section("score"), "score").metrics
    if alignments is not None:
        test_set = _of_files(alignments, None)
        systems = _systems(files, test_set)
        metrics = _metrics_of_links({test_set.name: test_set.references, **systems})
    else:
        test_set = _named_test_set(data, split, testset, pair) or _of_files(reference, source)
        language = target_lang or test_set.target_lang
        metrics = [metric.for_language(language) for metric in chosen]
        _warn_of_unspaced(test_set, metrics)
        systems = _systems(files, test_set)
    if sentence_level:
        _print_sentences(systems, test_set, metrics, as_json)
    else:
        resampling = Resampling(paired=paired, confidence=confidence, count=samples, seed=seed)
        form = table or ("text" if len(systems) > 1 else None)
        _print_scores(systems, test_set, metrics, resampling, "json" if as_json else form)


def _check_one_is_given(flags: dict[str, object], where: str = "") -> None:
    """Raise a BadParameter unless exactly one of the flags is given."""
    given = [flag for flag, value in flags.items() if value is not None]
    *names, last = flags
    choices = f"{', '.join(names)} and {last}"
    if not given:
        raise typer.BadParameter(f"{where}give one of {choices}")
    if len(given) > 1:
        raise typer.BadParameter(f"{where}give only one of {choices} (given: {', '.join(given)})")


def _metrics_of_links(files: dict[str, Sequence[str]]) -> list[Metric]:
    """Return the metric of alignments, after checking every line of the files.

    Raises:
        NmtError: a line holds a word that is not a link.
    """
    from nmt.evaluation.alignments import AlignmentErrorRate, check_lines

    check_lines(files)
    return [AlignmentErrorRate()]


def _print_scores(
    systems: Systems,
    test_set: TestSet,
    metrics: Sequence[Metric],
    resampling: Resampling,
    form: Literal["text", "markdown", "latex", "json"] | None,
) -> None:
    from nmt.evaluation.comparison import compare
    from nmt.evaluation.tables import table

    results = compare(systems, test_set.references, metrics, test_set.sources, resampling)
    if form is None or form == "json":
        for result in results:
            print(result if form is None else json.dumps(result.fields(), ensure_ascii=False))
    else:
        print(table(results, form, str(test_set)))


def _print_sentences(
    systems: Systems, test_set: TestSet, metrics: Sequence[Metric], as_json: bool
) -> None:
    columns = []
    for name, hypotheses in systems.items():
        for metric in (metric.for_sentences() for metric in metrics):
            counts = metric.checked_counts(hypotheses, test_set.references, test_set.sources)
            columns.append([(name, metric.total([row])) for row in counts])
    if not as_json:
        for number, ((name, first), *_) in enumerate(columns, 1):
            say(f"column {number}: {name}, {first.metric}, {first.signature}")
    for number, row in enumerate(zip(*columns, strict=True), 1):
        if as_json:
            for name, value in row:
                fields = {"system": name, "line": number, **vars(value)}
                print(json.dumps(fields, ensure_ascii=False))
        else:
            print("\t".join(f"{value.value:.2f}" for _, value in row))


def _systems(files: Sequence[Path], test_set: TestSet) -> Systems:
    systems: Systems = {}
    for file in files:
        lines = Lines.open(file)
        if lines.name in systems:
            raise typer.BadParameter(f"{lines.name} is given twice; give each system once")
        systems[lines.name] = lines.read()
        count, expected = len(systems[lines.name]), len(test_set.references)
        if count != expected:
            raise NmtError(
                f"{lines.name} has {count} lines, but {test_set.name} has {expected}; "
                "line n of one must translate as line n of the other"
            )
    return systems


def _named_test_set(
    data: Path | None, split: str, testset: str | None, pair: str | None
) -> TestSet | None:
    """Return the test set of --data or --testset, with its source; None without these flags."""
    if data is not None:
        return _of_dataset(data, split)
    return None if testset is None or pair is None else _by_name(testset, pair)


def _source_lines(test_set: TestSet) -> Lines:
    text = "".join(f"{line}\n" for line in test_set.sources or ())
    return Lines(io.BytesIO(text.encode()), test_set.name)


def _of_files(reference: Path | None, source: Path | None) -> TestSet:
    from nmt.evaluation.testsets import TestSet

    lines = Lines.open(reference)
    sources = Lines.open(source).read() if source is not None else None
    return TestSet(lines.name, lines.read(), sources, _language_of(reference))


def _language_of(reference: Path | None) -> str:
    """Return the language at the end of a file name, such as test.ja or test.ja.gz."""
    suffixes = reference.suffixes if reference is not None else []
    return next((suffix[1:] for suffix in reversed(suffixes) if suffix not in COMPRESSED), "")


def _warn_of_unspaced(test_set: TestSet, metrics: Sequence[Metric]) -> None:
    by_spaces = [metric.name for metric in metrics if getattr(metric, "tokenize", "") == "13a"]
    if by_spaces and is_unspaced("".join(test_set.references[:100])):
        warn(
            f"{test_set.name}: the text has no spaces between words, so {by_spaces[0]} takes a "
            "line for a word; give its language with --target-lang"
        )


def _of_dataset(data: Path, split: str) -> TestSet:
    from nmt.data.dataset import Dataset
    from nmt.evaluation.testsets import TestSet

    dataset = Dataset.open(data)
    held_out, language = dataset.split(split), dataset.manifest.target_lang
    try:
        sources, references = held_out.source_text(), held_out.reference_text()
        return TestSet(f"{split} of {data}", references, sources, language)
    except ValueError as error:
        raise NmtError(f"{data}: {error}; choose one with --split") from None


def _by_name(testset: str, pair: str) -> TestSet:
    from nmt.evaluation.testsets import by_name

    return by_name(testset, pair)

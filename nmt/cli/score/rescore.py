"""``nmt rescore``: add a feature to an n-best list of Moses's form, weigh features, and sort."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, zip_longest
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.console import await_stdin, check_stdin
from nmt.cli.options import PANEL, SourceLang, only_model
from nmt.cli.recipe import PluginFlag, TrustFlag, import_named
from nmt.cli.score.by_model import open_model, unequal_lines
from nmt.cli.score.references import metric_for
from nmt.errors import NmtError
from nmt.io import documents
from nmt.io.lines import Lines
from nmt.messages import say, warn
from nmt.recipe.config import parse_yaml

if TYPE_CHECKING:
    from nmt.inference import LineTranslator

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
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="References: the feature is the --metric of each translation instead of its "
        "log-probability by --model; plain, .gz, .xz or .zst. Repeat it for several "
        "references.",
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
    """Return the name of a feature; refuse a name that the list or --weights cannot hold.

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
        help="Language to translate into; with --reference, the language of the references, from "
        "which BLEU chooses its tokeniser.  [default: the model's only target language, or the end "
        "of the name of --reference]",
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
        bool, typer.Option("--best", help="Print only the first translation of each line.")
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
    references = reference or []
    check_stdin(*references, source, listed)
    weighted = parse_weights(weights)
    import_named(plugin)
    chosen = only_model(model)
    scores: ScoreFunction | None = None
    name = metric
    if references:
        if chosen is not None or reverse:
            raise typer.BadParameter("give either --reference, or --model and --source")
        scores = _scores_by_metric(metric, references, target_lang)
    elif chosen is not None and source is not None:
        translator = open_model(chosen, device, trust_plugins, target_lang, source_lang)
        if reverse and not translator.reads_source:
            raise NmtError(
                f"{chosen}: a language model reads no source, so that with --reverse all "
                "translations of a line would score the same; leave out --reverse"
            )
        say(f"engine {translator.engine}")
        scores = _scores_by_model(translator, reverse)
        name = "Reverse" if reverse else "Model"
    elif chosen is not None or reverse or not weighted:
        raise typer.BadParameter("give --model and --source, or --reference, or --weights alone")
    await_stdin(*references, source, listed)
    texts = [path for path in (*references, source) if path is not None]
    line_files = [Lines.open(path) for path in texts]
    missing, lists = 0, Lines.open(listed)
    for candidates in rescored(lists, line_files, scores, feature or name, weighted):
        missing += not candidates
        if best:
            print(candidates[0].text if candidates else "")
        else:
            print(*candidates, sep="\n", end="\n" if candidates else "")
    if missing:
        of, what = f" of {texts[0]}" if texts else "", "; they are printed empty" if best else ""
        warn(f"{lists.name}: lines{of} without translations: {missing:,}{what}")


def _scores_by_model(translator: LineTranslator, reverse: bool) -> ScoreFunction:
    """Return log-probabilities of targets, or with `reverse` of sources (Yee et al. 2019)."""

    def scores(sources: list[str], targets: list[str]) -> list[float]:
        pair = (targets, sources) if reverse else (sources, targets)
        return [sum(values) for values in translator.score(*pair)]

    return scores


def _scores_by_metric(
    name: str, references: Sequence[Path], target_lang: str | None
) -> ScoreFunction:
    """Return scores of single sentences, with one or several references and perhaps sources."""
    from nmt.evaluation.testsets import by_sentence

    chosen = metric_for(name, references[0], target_lang).for_sentences()

    def scores(*columns: list[str]) -> list[float]:
        sides, texts = columns[: len(references)], columns[len(references) :]
        counts = chosen.checked_counts(texts[-1], by_sentence(sides), *texts[:-1])
        return [chosen.compute([row])[0] for row in counts]

    return scores


BLOCK = 1024
"""Translations to score at once."""

MAX_BYTES = 1 << 16
"""Largest file of weights that is read, in bytes."""

GREATEST = 1e100
"""The greatest weight, and the greatest feature to tune a weight for; its square is finite."""

MAX_GAP = 1_000_000
"""Largest number of successive lines without translations, if there is no source to count."""

ScoreFunction = Callable[..., list[float]]
"""Function of source sentences, or references and perhaps their sources, and last one
translation of each source, each a list of texts; returns a score for each translation."""


@dataclass
class NBestEntry:
    """One translation of an n-best list."""

    number: int
    """Number of the source line, from 0."""

    text: str

    features: dict[str, list[float]]
    """Values by name; a name may have several values."""

    score: float

    read_score: str | None = None
    """The score as the list writes it; None for a new score."""

    @classmethod
    def parse(cls, line: str, place: str) -> NBestEntry:
        """Parse a line ``id ||| text ||| features ||| score``.

        Raises:
            NmtError: the line has another form; the message begins with `place`.
        """
        try:
            number, rest = line.split("|||", 1)
            text, features, score = rest.rsplit("|||", 2)  # the text may contain bars, too
            by_name: dict[str, list[float]] = {}
            for word in features.split():
                if word.endswith("="):
                    values = by_name.setdefault(word[:-1], [])
                elif by_name:
                    values.append(float(word))
                else:
                    raise ValueError(word)
            # Only what stands around a field; other white space belongs to the text.
            return cls(int(number), text.strip(" \t"), by_name, float(score), score.strip())
        except ValueError:
            raise NmtError(
                f'{place}: not "id ||| text ||| name= value ... ||| score", as nmt translate '
                "--n-best writes it"
            ) from None

    def __str__(self) -> str:
        features = " ".join(
            f"{name}= {' '.join(map(_number, values))}" for name, values in self.features.items()
        )
        score = f"{self.score:.6f}" if self.read_score is None else self.read_score
        return f"{self.number} ||| {self.text} ||| {features} ||| {score}"

    def values(self, names: Collection[str], place: str) -> list[float]:
        """Return the features of these names, each the sum of its values.

        Raises:
            NmtError: a feature is missing; the message begins with `place`.
        """
        if missing := {*names} - self.features.keys():
            lacking, known = ", ".join(map(repr, sorted(missing))), ", ".join(self.features)
            raise NmtError(f"{place}: no feature {lacking}; there are {known}")
        return [sum(self.features[name]) for name in names]

    def weigh(self, weights: Mapping[str, float], place: str) -> None:
        """Set the score to the weighted sum of the features.

        Raises:
            NmtError: a feature with a weight is missing, or the sum is not a number; the message
                begins with `place`.
        """
        values = self.values(weights, place)
        self.score, self.read_score = sum(map(operator.mul, weights.values(), values)), None
        if isnan(self.score):
            raise NmtError(f"{place}: the weighted sum is not a number; check its features")


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.10g}"


def parse_weights(text: str | None) -> dict[str, float]:
    """Return ``LogProbability=0.5,Length=0.1``, or a file of ``nmt tune``, as weights by name.

    Raises:
        NmtError: the text or the file has another form or names a feature twice, there is no such
            file, or a weight is not a number from -`GREATEST` to `GREATEST`.
    """
    if not text:
        return {}
    # The name of a file may hold an equals sign.
    is_list = "=" in text and not os.path.isfile(text)
    weights = _split_weights(text) if is_list else _read_weights(Path(text))
    for name, value in weights.items():
        # Written so that NaN is refused, too.
        if not abs(value) <= GREATEST:
            raise NmtError(
                f"--weights {text}: the weight of {name} is {value}, no number from -{GREATEST:g} "
                f"to {GREATEST:g}"
            )
    return weights


def _split_weights(text: str) -> dict[str, float]:
    """Return the weights of a flag."""
    try:
        pairs = [weight.split("=") for weight in text.split(",")]
        weights = {name: float(value) for name, value in pairs}
        if len(weights) < len(pairs):
            raise NmtError(f"--weights {text}: a feature is given twice; give each feature once")
        return weights
    except ValueError:
        raise NmtError(
            f"--weights {text}: expected NAME=NUMBER,NAME=NUMBER,... or a file of nmt tune"
        ) from None


def _read_weights(path: Path) -> dict[str, float]:
    """Return the weights in a file of YAML or JSON."""
    if not path.exists():
        raise NmtError(
            f"--weights {path}: no such file; give NAME=NUMBER,NAME=NUMBER,... or a file of nmt "
            "tune"
        )
    try:
        weights = parse_yaml(documents.read_bounded(path, MAX_BYTES).decode("utf-8"), str(path))
        return {str(name): float(value) for name, value in weights.items()}
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        raise NmtError(f"{path}: no weights, lines NAME: NUMBER, as nmt tune writes them") from None


def rescored(
    lines: Lines,
    line_files: Sequence[Lines] = (),
    score: ScoreFunction | None = None,
    feature: str = "",
    weights: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[list[NBestEntry]]:
    """Yield the candidates of each source line, perhaps none, perhaps with one more feature.

    Args:
        lines: an n-best list with numbers in ascending order.
        line_files: the texts that `score` reads, line by line; none if `score` is None and the list
            names every line.
        score: computes the feature of each translation; None for no new feature.
        feature: name of the new feature.
        weights: if not empty, the score becomes the weighted sum of the features, and the
            candidates of a line are sorted by score.

    Raises:
        NmtError: a line has another form; its number is not a line of the source, is out of order,
            or is far above the previous number; the feature exists already, or a feature with a
            weight is missing or makes a sum that is not a number; or the texts differ in their
            number of lines.
    """
    texts = enumerate(_rows(line_files)) if line_files else None
    new = feature if score else None
    source = line_files[0].name if line_files else ""
    pairs = _with_sources(_candidates(lines, new), texts, source, lines.name)
    scored = _scored(pairs, score, feature, weights, lines.name)
    following = 0
    for number, group in groupby(scored, key=lambda candidate: candidate.number):
        yield from ([] for _ in range(following, number))
        candidates = list(group)
        # Stable: candidates with equal scores keep the order of the list.
        yield sorted(candidates, key=lambda candidate: -candidate.score) if weights else candidates
        following = number + 1
    if texts:
        yield from ([] for _ in texts)


def _rows(files: Sequence[Lines]) -> Iterator[tuple[str, ...]]:
    """Yield line n of all files together."""
    sides = (chain.from_iterable(lines.blocks(BLOCK)) for lines in files)
    # zip would hide that a file ends early.
    for row in zip_longest(*sides):
        if None in row:
            raise unequal_lines(*files)
        yield row


def _candidates(lines: Lines, feature: str | None) -> Iterator[NBestEntry]:
    for at, line in enumerate(chain.from_iterable(lines.blocks(BLOCK)), start=1):
        candidate = NBestEntry.parse(line, f"{lines.name}:{at}")
        if feature in candidate.features:
            raise NmtError(
                f"{lines.name}:{at}: there is a feature {feature} already; choose another --feature"
            )
        yield candidate


def _with_sources(
    candidates: Iterable[NBestEntry],
    texts: Iterator[tuple[int, tuple[str, ...]]] | None,
    source: str,
    name: str,
) -> Iterator[tuple[tuple[str, ...], NBestEntry]]:
    number = -1
    row: tuple[str, ...] = ()
    for at, candidate in enumerate(candidates, start=1):
        if candidate.number < 0:
            raise NmtError(f"{name}:{at}: number {candidate.number}, but numbers count from 0")
        if candidate.number < number:
            raise NmtError(
                f"{name}:{at}: number {candidate.number} comes after {number}; sort the list: "
                "sort -s -n -k 1,1"
            )
        if texts is None and (gap := candidate.number - number - 1) > MAX_GAP:
            raise NmtError(
                f"{name}:{at}: number {candidate.number} leaves out {gap:,} lines, more than "
                f"{MAX_GAP:,}; check the number"
            )
        while texts and number < candidate.number:
            if (following := next(texts, None)) is None:
                raise NmtError(
                    f"{name}:{at}: number {candidate.number}, but {source} has {number + 1} lines; "
                    "numbers count from 0"
                )
            number, row = following
        number = candidate.number
        yield row, candidate


def _scored(
    pairs: Iterator[tuple[tuple[str, ...], NBestEntry]],
    score: ScoreFunction | None,
    feature: str,
    weights: Mapping[str, float],
    name: str,
) -> Iterator[NBestEntry]:
    # In blocks, which fill the model's batches without holding the whole list.
    while block := list(islice(pairs, BLOCK)):
        if score:
            columns = map(list, zip(*(row for row, _ in block), strict=True))
            values = score(*columns, [candidate.text for _, candidate in block])
            for (_, candidate), value in zip(block, values, strict=True):
                candidate.features[feature] = [value]
        for _, candidate in block:
            if weights:
                candidate.weigh(weights, f"{name}: a translation of line {candidate.number}")
            yield candidate

"""Input of ``nmt score``: references, perhaps with their source, and the lines of systems."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nmt.cli.score.by_model import unequal_lines
from nmt.errors import NmtError
from nmt.io.lines import COMPRESSED, Lines
from nmt.languages import is_unspaced
from nmt.messages import warn

if TYPE_CHECKING:
    from nmt.data.dataset import Split, Subset
    from nmt.evaluation.metrics import Metric
    from nmt.evaluation.testsets import TestSet

Systems = dict[str, list[str]]
"""Lines of each system, by the name of its file."""


@dataclass(frozen=True)
class References:
    """The place of references, or of sources."""

    reference: Sequence[Path] = ()
    source: Path | None = None
    data: Path | None = None
    split: str | None = None
    testset: str | None = None
    pair: str | None = None
    target_lang: str | None = None
    source_lang: str | None = None

    def check(self, alignments: Path | None) -> None:
        """Raise a BadParameter unless there is exactly one set of references."""
        self._check_companions()
        last = {"--alignments": alignments, "--model": None}
        _check_one_is_given({"--reference": self.reference or None, **self._known(), **last})

    def check_source(self) -> None:
        """Raise a BadParameter unless there is exactly one source."""
        self._check_companions()
        _check_one_is_given({"--source": self.source, **self._known()}, "with --model, ")

    def test_set(self) -> TestSet:
        """Return the references, with their source if it is known."""
        return self._named() or _of_files(self.reference, self.source)

    def source_lines(self) -> tuple[Lines, str]:
        """Return the source, and the language of its references; empty if it is not known."""
        if (named := self._named()) is None:
            return Lines.open(self.source), ""
        text = "".join(f"{line}\n" for line in named.sources or ())
        return Lines(io.BytesIO(text.encode()), named.name), named.target_lang

    def _check_companions(self) -> None:
        if self.split is not None and self.data is None:
            raise typer.BadParameter("--split goes with --data, whose split it names")
        if (self.testset is None) != (self.pair is None):
            hint = "" if self.target_lang is None else "; -t is --target-lang here"
            raise typer.BadParameter(f"--testset and --language-pair go together{hint}")

    def _known(self) -> dict[str, object]:
        return {"--data": self.data, "--testset": self.testset}

    def _named(self) -> TestSet | None:
        """Return the test set of --data or --testset; None without these flags."""
        if self.data is not None:
            return _of_dataset(self.data, self.split, self.target_lang, self.source_lang)
        if self.testset is None or self.pair is None:
            return None
        from nmt.evaluation.testsets import by_name

        return by_name(self.testset, self.pair)


def read_systems(files: Sequence[Path], test_set: TestSet) -> Systems:
    """Return the lines of each system, one line for each line of the test set.

    Raises:
        NmtError: the numbers of lines differ, or there are no lines.
    """
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
                "line n of both must belong to the same sentence"
            )
    if not test_set.references:
        names = " and ".join(dict.fromkeys([test_set.name, *systems]))
        raise NmtError(f"nothing to score: no lines in {names}; give files with text")
    return systems


def warn_of_unspaced(test_set: TestSet, metrics: Sequence[Metric]) -> None:
    """Print a warning if a metric takes a line without spaces for a word."""
    from nmt.evaluation.testsets import reference_rows

    by_spaces = [metric.name for metric in metrics if getattr(metric, "tokenize", "") == "13a"]
    # A hundred lines tell it as surely as all.
    lines = chain.from_iterable(reference_rows(test_set.references[:100]))
    if by_spaces and is_unspaced("".join(lines)):
        warn(
            f"{test_set.name}: the text has no spaces between words, so {by_spaces[0]} takes a "
            "line for a word; give its language with --target-lang"
        )


def _check_one_is_given(flags: dict[str, object], where: str = "") -> None:
    """Raise a BadParameter unless exactly one of the flags is given."""
    given = [flag for flag, value in flags.items() if value is not None]
    *names, last = flags
    choices = f"{', '.join(names)} and {last}"
    if not given:
        raise typer.BadParameter(f"{where}give one of {choices}")
    if len(given) > 1:
        raise typer.BadParameter(f"{where}give only one of {choices} (given: {', '.join(given)})")


def _of_files(references: Sequence[Path], source: Path | None) -> TestSet:
    from nmt.evaluation.testsets import TestSet, by_sentence

    files = [Lines.open(path) for path in references]
    sides = [lines.read() for lines in files]
    if len({*map(len, sides)}) > 1:
        raise unequal_lines(*files)
    sources = Lines.open(source).read() if source is not None else None
    name = " + ".join(lines.name for lines in files)
    return TestSet(name, by_sentence(sides), sources, _language_of(references[0]))


def _language_of(reference: Path) -> str:
    """Return the language at the end of a file name, such as test.ja or test.ja.gz."""
    suffixes = reversed(reference.suffixes)
    return next((suffix[1:] for suffix in suffixes if suffix not in COMPRESSED), "")


def _of_dataset(
    data: Path, split: str | None, target_lang: str | None, source_lang: str | None
) -> TestSet:
    """Return the pairs of a split; of a multilingual dataset, the pairs of one direction.

    Raises:
        NmtError: the dataset has no such split, or no test set if no split is named.
    """
    from nmt.data.dataset import Dataset
    from nmt.evaluation.testsets import TestSet
    from nmt.recipe.registry import unknown

    dataset = Dataset.open(data)
    if split is None and not dataset.has_split("test"):
        raise NmtError(
            f"{data}: has no test set; give --split valid, or preprocess it again with --test"
        )
    split = "test" if split is None else split
    held_out_splits = [name for name in dataset.manifest.splits if name != "train"]
    if not dataset.has_split(split):
        raise NmtError(f"{data}: {unknown('split', split, held_out_splits)}")
    whole, language = dataset.split(split), dataset.manifest.target_lang
    held_out: Split | Subset = whole
    if whole.directions is not None:
        from nmt.data.dataset import Subset
        from nmt.subwords.subwords import Subwords

        directions = Subwords.from_dataset(dataset).directions
        assert directions is not None
        direction = directions.choose(target_lang, source_lang)
        language = direction[1]
        held_out = Subset.of_direction(whole, directions.number(direction))
    try:
        sources, references = held_out.source_text(), held_out.reference_text()
        return TestSet(f"{split} of {data}", references, sources, language)
    except ValueError as error:
        raise NmtError(f"{data}: {error}; choose one with --split") from None


def metric_for(name: str, reference: Path, target_lang: str | None) -> Metric:
    """Return a metric with the settings of a language.

    Args:
        name: name of the metric.
        reference: file of the references.
        target_lang: language of the references; None for the end of the file name.

    Raises:
        NmtError: no metric has this name.
    """
    from nmt.evaluation.metrics import Metric
    from nmt.recipe.config import build

    metric: Metric = build(Metric, {"name": name}, "metric")  # type: ignore[type-abstract]
    return metric.for_language(target_lang or _language_of(reference))

"""Compare systems: scores, confidence intervals, and significance of differences.

Resampling and randomisation are sacreBLEU's (`sacrebleu.significance`), with the same counts and
the same seed, so sacreBLEU's command line gives the same numbers. Sources: Koehn 2004, *Statistical
Significance Tests for Machine Translation Evaluation*; Riezler and Maxwell 2005.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
from sacrebleu import significance
from sacrebleu.metrics.base import Score as SacreBleuScore
from sacrebleu.metrics.base import Signature

from nmt.errors import NmtError
from nmt.evaluation.groups import GroupScore, group_scores
from nmt.evaluation.metrics import Counts, Metric, Score
from nmt.evaluation.testsets import References, TestSet, reference_rows
from nmt.messages import warn

Paired = Literal["bs", "ar"]

SAMPLES: dict[Paired, int] = {"bs": 1000, "ar": 10_000}
"""Default number of samples or trials, the same as sacreBLEU's."""

SEED_VARIABLE = "SACREBLEU_SEED"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The score of a system by one metric, with statistics over samples of the test set."""

    system: str
    score: Score
    mean: float | None = None
    """Mean score over the samples."""
    interval: float | None = None
    """Half the width of the interval that holds 95% of the samples' scores."""
    p_value: float | None = None
    """Probability that chance alone makes a difference from the baseline at least as large."""
    runs: tuple[str, ...] = ()
    """Names of the systems of a group, whose mean is the score."""
    group: GroupScore | None = None
    """Scores of the systems of a group; None for a single system."""
    baseline: str | None = None
    """Name of the system that this system was compared with."""
    samples: str | None = None
    """Kind, number and seed of the samples, such as "bs:1000|seed:12345"."""

    def __str__(self) -> str:
        if self.mean is None:
            return str(self.score)
        name, value, sure = self.score.metric, self.score.value, f"{self.mean:.2f} ± "
        sure += f"{self.interval:.2f}"
        signature = f"{self.score.signature}|{self.samples}"
        return f"{name} = {value:.2f} (μ = {sure}) {self.score.details} {signature}"

    def fields(self) -> dict[str, Any]:
        """Return plain values for JSON, without statistics that were not computed."""
        values = {"system": self.system, **vars(self.score)}
        for name in ("mean", "interval", "p_value", "baseline", "samples"):
            if getattr(self, name) is not None:
                values[name] = getattr(self, name)
        if self.group is not None:
            values |= {"runs": self.runs, "values": self.group.values}
            values["standard_deviation"] = self.group.standard_deviation
            values["standard_error"] = self.group.standard_error
        return values


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """Settings of resampling a test set, for intervals and significance tests."""

    paired: Paired | None = None
    """Test that compares each system with the first: paired bootstrap resampling (bs) or
    approximate randomisation (ar); None for no comparison."""
    confidence: bool = False
    """Whether intervals are estimated by bootstrap resampling; with `paired` bs they always are."""
    count: int | None = None
    """Number of samples, or trials of the randomisation; None for the default (SAMPLES)."""
    seed: int = 12345
    """Random seed, at least 1: sacreBLEU takes 0 for no seed."""

    def statistics(
        self, metric: Metric, systems: Mapping[str, Counts]
    ) -> list[significance.Result]:
        """Return the requested ones of p-value, mean and interval, for each system."""
        counted: Any = _Counted(metric)
        named: list[Any] = list(systems.items())
        with _seeded(self.seed):
            if self.paired is not None:
                test = significance.PairedTest(
                    named,
                    {metric.name: counted},
                    references=None,
                    test_type=self.paired,
                    # For sacreBLEU 0 means the default of the test, and -1 no intervals.
                    n_samples=self.count or 0,
                    n_ar_confidence=SAMPLES["bs"] if self.confidence else -1,
                )
                _, columns = test()
                column = columns[metric.name]
                return [result for result in column if isinstance(result, significance.Result)]
            return [self._interval(counted, counts) for counts in systems.values()]

    def _interval(self, counted: Any, counts: Counts) -> significance.Result:
        result = counted._aggregate_and_compute(counts)
        if not self.confidence:
            return significance.Result(result.score)
        number = self.count or SAMPLES["bs"]
        _, samples = significance._bootstrap_resample(counts, counted, number)
        if {type(sample.score) for sample in samples} != {np.float32}:
            # Where nothing agrees a score is a plain 0.0, and statistics mixes no types.
            for sample in samples:
                sample.score = float(sample.score)
        result.estimate_ci(samples)
        return significance.Result(result.score, mean=result._mean, ci=result._ci)

    def __str__(self) -> str:
        """Return the settings in the form of a signature; empty if nothing is sampled."""
        drawn: dict[str, int] = {}
        if self.paired is not None:
            drawn[self.paired] = self.count or SAMPLES[self.paired]
        if self.confidence and self.paired != "bs":
            drawn["bs"] = SAMPLES["bs"] if self.paired else self.count or SAMPLES["bs"]
        if drawn:
            drawn["seed"] = self.seed
        return "|".join(f"{key}:{value}" for key, value in drawn.items())


def compare(
    systems: Mapping[str, Sequence[str]],
    references: References,
    metrics: Sequence[Metric],
    sources: Sequence[str] | None = None,
    resampling: Resampling | None = None,
) -> list[Result]:
    """Score every system by every metric.

    Args:
        systems: the hypotheses of each system, by its name; the first is the baseline of paired
            tests.
        references: for each hypothesis, in the same order, one reference or several.
        metrics: the metrics to compute.
        sources: the source sentences, for metrics that need them.
        resampling: intervals and tests to compute, if any.

    Returns:
        A result for each metric and system: by metric, then by system, in the order given.

    Raises:
        NmtError: as `Metric.checked_counts`; a score is not a number; or a single line is to be
            resampled.
    """
    resampling = resampling or Resampling()
    if len(references) == 1 and (resampling.confidence or resampling.paired):
        raise NmtError(
            "--confidence and --paired need more than one line to draw samples from; give a larger "
            "test set, or leave them out"
        )
    baseline = next(iter(systems)) if resampling.paired else None
    results = []
    for metric in metrics:
        counts = {
            name: metric.checked_counts(hypotheses, references, sources)
            for name, hypotheses in systems.items()
        }
        scores = {name: metric.total(counted, references) for name, counted in counts.items()}
        first = next(iter(scores.values()))
        for name, sampled in zip(systems, resampling.statistics(metric, counts), strict=True):
            if math.isnan(scores[name].value) or math.isnan(sampled.mean or 0.0):
                raise NmtError(
                    f"{name}: its score by {metric.name}, or the score of a sample of its lines, "
                    "is not a number; correct the metric's method compute, or choose another "
                    "metric"
                )
            is_compared = sampled.p_value is not None
            is_same = is_compared and scores[name].value == first.value
            results.append(
                Result(
                    system=name,
                    score=scores[name],
                    mean=None if sampled.mean is None else float(sampled.mean),  # from float32
                    interval=None if sampled.ci is None else float(sampled.ci),
                    p_value=1.0 if is_same else sampled.p_value,  # sacreBLEU: significant
                    baseline=baseline if is_compared else None,
                    samples=str(resampling) or None,
                )
            )
    return results


def group_results(results: Sequence[Result], groups: Mapping[str, Sequence[str]]) -> list[Result]:
    """Return a result for each metric and group of systems: by metric, then by group.

    Args:
        results: the results of all systems.
        groups: the systems of each group, by its name; the first group is the baseline.
    """
    by_metric: dict[tuple[str, str], dict[str, Score]] = {}
    for result in results:
        key = result.score.metric, result.score.signature
        by_metric.setdefault(key, {})[result.system] = result.score
    baseline = next(iter(groups))
    grouped = []
    for scores in by_metric.values():
        values = {name: [scores[run].value for run in runs] for name, runs in groups.items()}
        for name, group in group_scores(values).items():
            details = f"(runs: {len(group.values)})"
            grouped.append(
                Result(
                    system=name,
                    score=replace(scores[groups[name][0]], value=group.mean, details=details),
                    p_value=group.p_value,
                    baseline=None if group.p_value is None else baseline,
                    runs=tuple(groups[name]),
                    group=group,
                )
            )
    return grouped


class _Counted:
    """A metric as sacreBLEU's tests expect it, with counts, so that nothing is counted twice."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def _extract_corpus_statistics(self, hypotheses: Counts, references: None) -> Counts:
        return hypotheses

    def _aggregate_and_compute(self, counts: Counts) -> SacreBleuScore:
        return SacreBleuScore(self.metric.name, self.metric.compute(counts)[0])

    def _compute_score_from_stats(self, sums: list[float]) -> SacreBleuScore:
        return self._aggregate_and_compute([sums])

    def get_signature(self) -> Signature:
        return Signature({"num_refs": 1})


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set sacreBLEU's seed, which it reads only from the environment."""
    before = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SEED_VARIABLE]
        else:
            os.environ[SEED_VARIABLE] = before


def by_document(
    test_set: TestSet, systems: Mapping[str, Sequence[str]]
) -> tuple[TestSet, dict[str, list[str]]]:
    """Return the test set and the lines of each system, joined by document.

    Blank lines of the references divide a test set into documents. Scores of documents are known as
    d-BLEU (Liu et al. 2020).

    Raises:
        NmtError: a system or the source differs from the references in its number of lines, or has
            text where the references are blank; or only some references of a line are blank.
    """
    rows = reference_rows(test_set.references)
    has_text = [any(line.strip() for line in row) for row in rows]
    for number, (row, is_sentence) in enumerate(zip(rows, has_text, strict=True), 1):
        if is_sentence and not all(line.strip() for line in row):
            raise NmtError(
                f"{test_set.name}: line {number} is blank in some references only; the blank lines "
                "between documents must be in the same places"
            )
    groups = groupby(range(len(has_text)), key=has_text.__getitem__)
    documents = [[*lines] for is_document, lines in groups if is_document]
    if documents and all(has_text):
        warn(f"no blank line is in {test_set.name}: all of it is scored as one document")

    def joined(name: str, side: Sequence[str]) -> list[str]:
        if len(side) != len(has_text):
            raise NmtError(
                f"{name} has {len(side)} lines, but {test_set.name} has {len(has_text)}; "
                "line n of both must belong to the same sentence"
            )
        for number, (line, is_sentence) in enumerate(zip(side, has_text, strict=True), 1):
            if line.strip() and not is_sentence:
                raise NmtError(
                    f"{name}: line {number} has text, but the same line of {test_set.name} is "
                    "blank; the blank lines between documents must be in the same places"
                )
        return [" ".join(side[at] for at in lines) for lines in documents]

    sources = test_set.sources
    return (
        replace(
            test_set,
            name=f"documents of {test_set.name}",
            references=[
                [" ".join(parts) for parts in zip(*(rows[at] for at in lines), strict=True)]
                for lines in documents
            ],
            sources=None if sources is None else joined(f"source of {test_set.name}", sources),
        ),
        {name: joined(name, lines) for name, lines in systems.items()},
    )


def marked(score: Score) -> Score:
    """Return a score with documents in its signature: it differs from the score of lines."""
    return replace(score, signature=f"{score.signature}|unit:document")

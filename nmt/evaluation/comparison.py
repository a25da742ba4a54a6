"""Systems side by side: their scores, how sure these are, and whether their differences are chance.

Resampling and randomisation are those of sacreBLEU (`sacrebleu.significance`), of the same counts
and with the same seed, so that its command line gives the same numbers. What they mean: Koehn 2004,
*Statistical Significance Tests for Machine Translation Evaluation*; Riezler and Maxwell 2005.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sacrebleu import significance
from sacrebleu.metrics.base import Score as SacreBleuScore
from sacrebleu.metrics.base import Signature

from nmt.evaluation.metrics import Counts, Metric, Score

Paired = Literal["bs", "ar"]
SAMPLES: dict[Paired, int] = {"bs": 1000, "ar": 10_000}
"""How many are drawn by default, as by sacreBLEU."""
SEED_VARIABLE = "SACREBLEU_SEED"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The score of a system by one metric, and what samples of the test set say about it."""

    system: str
    score: Score
    mean: float | None = None
    """Over the samples."""
    interval: float | None = None
    """Half the width of the interval in which 95% of the samples lie."""
    p_value: float | None = None
    """How likely chance alone makes the difference from the baseline at least as large."""
    baseline: str | None = None
    """The system that this one was compared with."""
    samples: str | None = None
    """Of which kind, how many, and with which seed."""

    def __str__(self) -> str:
        if self.mean is None:
            return str(self.score)
        name, value, sure = self.score.metric, self.score.value, f"{self.mean:.2f} ± "
        sure += f"{self.interval:.2f}"
        signature = f"{self.score.signature}|{self.samples}"
        return f"{name} = {value:.2f} (μ = {sure}) {self.score.details} {signature}"

    def fields(self) -> dict[str, Any]:
        """Plain values, without those that nobody asked for."""
        values = {"system": self.system, **vars(self.score)}
        for name in ("mean", "interval", "p_value", "baseline", "samples"):
            if getattr(self, name) is not None:
                values[name] = getattr(self, name)
        return values


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """Which samples of a test set are scored, too."""

    paired: Paired | None = None
    """Systems are compared with the first one by bootstrap resampling (bs) or approximate
    randomisation (ar); None for no comparison."""
    confidence: bool = False
    """Whether intervals are estimated by bootstrap resampling; with `paired` bs they always are."""
    count: int | None = None
    """Samples of the test set, or trials of the randomisation; None for the usual number."""
    seed: int = 12345
    """At least 1: sacreBLEU takes 0 for no seed."""

    def of(self, metric: Metric, systems: Mapping[str, Counts]) -> list[significance.Result]:
        """What the samples say of each system: p-value, mean and interval, where asked for."""
        counted: Any = _Counted(metric)
        named: list[Any] = list(systems.items())
        with _seeded(self.seed):
            if self.paired is not None:
                test = significance.PairedTest(
                    named,
                    {metric.name: counted},
                    references=None,
                    test_type=self.paired,
                    n_samples=self.count or 0,
                    n_ar_confidence=SAMPLES["bs"] if self.confidence else -1,
                )
                _, found = test()
                return [it for it in found[metric.name] if isinstance(it, significance.Result)]
            return [self._interval(counted, counts) for counts in systems.values()]

    def _interval(self, counted: Any, counts: Counts) -> significance.Result:
        whole = counted._aggregate_and_compute(counts)
        if not self.confidence:
            return significance.Result(whole.score)
        number = self.count or SAMPLES["bs"]
        _, samples = significance._bootstrap_resample(counts, counted, number)
        whole.estimate_ci(samples)
        return significance.Result(whole.score, mean=whole._mean, ci=whole._ci)

    def __str__(self) -> str:
        """In the manner of a signature; empty where nothing is sampled."""
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
    references: Sequence[str],
    metrics: Sequence[Metric],
    sources: Sequence[str] | None = None,
    resampling: Resampling | None = None,
) -> list[Result]:
    """Every system by every metric, metric by metric, systems in the order given.

    Args:
        systems: the hypotheses of each, by its name; of paired tests, the first is the baseline.
        references: one for each hypothesis, on the same line.
        metrics: which scores.
        sources: what was translated, for the metrics that need it.
        resampling: what is estimated besides.

    Raises:
        NmtError: as `Metric.checked_counts`.
    """
    resampling = resampling or Resampling()
    baseline = next(iter(systems)) if resampling.paired else None
    results = []
    for metric in metrics:
        counts = {
            name: metric.checked_counts(hypotheses, references, sources)
            for name, hypotheses in systems.items()
        }
        first = next(iter(counts.values()))
        for name, found in zip(systems, resampling.of(metric, counts), strict=True):
            is_compared = found.p_value is not None
            is_same = is_compared and counts[name] == first
            results.append(
                Result(
                    system=name,
                    score=metric.total(counts[name]),
                    mean=None if found.mean is None else float(found.mean),  # of float32
                    interval=None if found.ci is None else float(found.ci),
                    p_value=1.0 if is_same else found.p_value,  # sacreBLEU calls it significant
                    baseline=baseline if is_compared else None,
                    samples=str(resampling) or None,
                )
            )
    return results


class _Counted:
    """A metric to sacreBLEU's tests, with counts for hypotheses: nothing is counted twice."""

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
    """Gives sacreBLEU a seed in the one way there is."""
    before = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SEED_VARIABLE]
        else:
            os.environ[SEED_VARIABLE] = before

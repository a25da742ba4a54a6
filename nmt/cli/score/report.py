"""Output of ``nmt score`` by metrics: scores, statistics, tables, and scores of sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import typer

from nmt.cli.score.references import Systems
from nmt.messages import say

if TYPE_CHECKING:
    from nmt.evaluation.metrics import Metric, Score
    from nmt.evaluation.testsets import TestSet


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """Statistics and form of the scores of metrics."""

    paired: Literal["bs", "ar"] | None
    confidence: bool
    samples: int | None
    seed: int
    by_document: bool
    sentence_level: bool
    as_json: bool
    table: Literal["text", "markdown", "latex"] | None

    @property
    def needs_metrics(self) -> bool:
        """Whether an option is given that has a meaning for metrics only."""
        level = self.by_document or self.sentence_level
        return bool(level or self.paired or self.confidence or self.samples or self.table)

    def check(self, systems: int) -> None:
        """Raise a BadParameter if options do not go together."""
        if self.as_json and self.table is not None:
            raise typer.BadParameter("give either --json or --table")
        if self.sentence_level and (self.paired or self.confidence or self.table):
            raise typer.BadParameter(
                "--sentence-level goes with no --paired, --confidence or --table"
            )
        if self.paired and systems == 1:
            raise typer.BadParameter(
                "--paired compares systems: give two or more, the baseline first"
            )
        if self.samples is not None and not (self.paired or self.confidence):
            raise typer.BadParameter("--samples goes with --paired or --confidence")

    def write(self, systems: Systems, test_set: TestSet, metrics: Sequence[Metric]) -> None:
        """Print the scores of all systems."""
        from nmt.evaluation.comparison import by_document

        if self.by_document:
            test_set, systems = by_document(test_set, systems)
        if self.sentence_level:
            self._print_sentences(systems, test_set, metrics)
        else:
            self._print_scores(systems, test_set, metrics)

    def _print_scores(self, systems: Systems, test_set: TestSet, metrics: Sequence[Metric]) -> None:
        from nmt.evaluation.comparison import Resampling, compare
        from nmt.evaluation.tables import table

        resampling = Resampling(
            paired=self.paired, confidence=self.confidence, count=self.samples, seed=self.seed
        )
        results = compare(systems, test_set.references, metrics, test_set.sources, resampling)
        results = [replace(result, score=self._signed(result.score)) for result in results]
        if form := self.table or ("text" if len(systems) > 1 and not self.as_json else None):
            print(table(results, form, str(test_set)))
            return
        for result in results:
            print(json.dumps(result.fields(), ensure_ascii=False) if self.as_json else str(result))

    def _print_sentences(
        self, systems: Systems, test_set: TestSet, metrics: Sequence[Metric]
    ) -> None:
        columns = []
        for name, hypotheses in systems.items():
            for metric in (metric.for_sentences() for metric in metrics):
                counts = metric.checked_counts(hypotheses, test_set.references, test_set.sources)
                rows = zip(counts, test_set.references, strict=True)
                scores = [metric.total([row], [reference]) for row, reference in rows]
                columns.append([(name, self._signed(score)) for score in scores])
        if not self.as_json:
            for number, ((name, first), *_) in enumerate(columns, 1):
                say(f"column {number}: {name}, {first.metric}, {first.signature}")
        for number, row in enumerate(zip(*columns, strict=True), 1):
            if self.as_json:
                for name, value in row:
                    fields = {"system": name, "line": number, **vars(value)}
                    print(json.dumps(fields, ensure_ascii=False))
            else:
                print("\t".join(f"{value.value:.2f}" for _, value in row))

    def _signed(self, score: Score) -> Score:
        """Return the score with the signature of what was scored."""
        from nmt.evaluation.comparison import marked

        return marked(score) if self.by_document else score

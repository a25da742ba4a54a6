"""Output of ``nmt score`` by metrics: scores, statistics, tables, and scores of sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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

    group: Sequence[str]
    """Beginnings of the file names of each group."""
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
        tested = self.group or self.paired or self.confidence or self.samples
        return bool(level or tested or self.table)

    def check(self, files: Sequence[Path]) -> None:
        """Raise a BadParameter if options do not go together, or a group is too small."""
        if self.as_json and self.table is not None:
            raise typer.BadParameter("give either --json or --table")
        if self.sentence_level and (self.paired or self.confidence or self.table):
            raise typer.BadParameter(
                "--sentence-level goes with no --paired, --confidence or --table"
            )
        if self.group and (self.paired or self.confidence or self.sentence_level):
            raise typer.BadParameter(
                "--group goes with no --paired, --confidence or --sentence-level: it compares runs"
            )
        groups = self._groups(map(str, files))
        for prefix in self.group:
            if len(groups[prefix]) < 2:
                raise typer.BadParameter(
                    f"--group {prefix}: begins the names of {len(groups[prefix])} of the files; "
                    "give the translations of two or more runs"
                )
        if self.paired and len(files) == 1:
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
        from nmt.evaluation.comparison import Resampling, compare, group_results
        from nmt.evaluation.tables import table

        resampling = Resampling(
            paired=self.paired, confidence=self.confidence, count=self.samples, seed=self.seed
        )
        results = compare(systems, test_set.references, metrics, test_set.sources, resampling)
        results = [replace(result, score=self._signed(result.score)) for result in results]
        if self.group:
            results = group_results(results, self._groups(systems))
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

    def _groups(self, systems: Iterable[str]) -> dict[str, list[str]]:
        """Return the systems of each group; a system without a group is a group of one."""
        groups: dict[str, list[str]] = {prefix: [] for prefix in self.group}
        for system in systems:
            names = system, Path(system).name
            begin = [text for text in self.group if any(name.startswith(text) for name in names)]
            # The longest, so that a file of run-10 does not join the group of run-1.
            groups.setdefault(max(begin, key=len, default=system), []).append(system)
        return groups

    def _signed(self, score: Score) -> Score:
        """Return the score with the signature of what was scored."""
        from nmt.evaluation.comparison import marked

        return marked(score) if self.by_document else score

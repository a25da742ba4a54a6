"""Everything that a report shows, gathered from run directories."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nmt.errors import NmtError
from nmt.io.documents import finite
from nmt.recipe.config import flatten, json_values
from nmt.report.charts import Chart
from nmt.report.curves import Axis, Curve
from nmt.report.datasets import dataset_of, facts
from nmt.report.log import Log, read_log
from nmt.report.panels import Panel, panels
from nmt.report.translations import Translations
from nmt.runs import LOG, Run

NOT_KEPT = "The run keeps no translations: they are written where train.valid_metrics has a metric."

UNSHARED = ("train.save_dir",)
"""Keys of the recipe that differ in every run and say nothing."""

ABSENT = "–"
"""Stands for the value of a key that a recipe does not have."""


@dataclass(frozen=True)
class Report:
    """Runs and their logs, by the names that the report gives them."""

    runs: Mapping[str, Run]
    logs: Mapping[str, Log]

    @cached_property
    def panels(self) -> list[Panel]:
        """The charts."""
        return list(panels(self.logs))

    @property
    def colours(self) -> dict[str, int]:
        """The number of the colour of each run."""
        return {name: number for number, name in enumerate(self.runs)}

    def marks(self, axis: Axis) -> dict[str, list[float]]:
        """Return where on an axis trainings resumed, and where updates were skipped."""
        marks: dict[str, list[float]] = {"resumed": [], "skipped": []}
        for log in self.logs.values():
            for kind, updates in (("resumed", log.resumed), ("skipped", list(log.skipped))):
                marks[kind] += updates if axis == "update" else log.minutes(updates)
        return marks

    def charts(self, axis: Axis) -> dict[str, Chart]:
        """Return the charts over an axis by their titles."""
        marks = self.marks(axis)
        return {panel.title: panel.chart(axis, self.colours, marks) for panel in self.panels}

    def differences(self) -> dict[str, list[object]]:
        """Return the values of each run, by the keys of the recipe whose values differ."""
        flat = [flatten(json_values(run.recipe)) for run in self.runs.values()]
        keys = dict.fromkeys(key for recipe in flat for key in recipe)
        rows = {key: [recipe.get(key, ABSENT) for recipe in flat] for key in keys}
        return {
            key: values
            for key, values in rows.items()
            if key not in UNSHARED and any(value != values[0] for value in values)
        }

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON, with every value of every curve."""
        datasets: dict[str, dict[str, Any]] = {}
        described = []
        for name, run in self.runs.items():
            about = self._facts(name)
            try:
                dataset = dataset_of(run)
                if "missing" in datasets.get(run.data, {"missing": ""}):
                    datasets[run.data] = facts(dataset)
                kept = Translations.of(run, dataset)
            except NmtError as error:
                datasets.setdefault(run.data, {"missing": f"The dataset cannot be read: {error}"})
                about["translations"] = {"missing": f"The validation set cannot be read: {error}"}
            else:
                about["translations"] = {"missing": NOT_KEPT} if kept is None else kept.facts()
            described.append(about)
        return {
            "runs": described,
            "datasets": datasets,
            "differences": self.differences(),
            "curves": curves(self.panels),
        }

    def _facts(self, name: str) -> dict[str, Any]:
        run, log = self.runs[name], self.logs[name]
        speeds = log.curve("train", "target_tokens_per_second").values
        memory = log.curve("train", "memory_mb").values
        epochs = log.curve("train", "epoch").values
        return {
            "name": name,
            "path": str(run.path),
            "languages": list(run.languages),
            "architecture": run.section("model").get("arch"),
            "updates": log.last,
            "epochs": epochs[-1] if epochs else None,
            "minutes": log.minutes([log.last])[0] or None,
            "target_tokens_per_second": statistics.median(speeds) if speeds else None,
            "memory_mb": max(memory) if memory else None,
            "begun": log.begun,
            "ended": log.ended,
            "resumed": log.resumed,
            "skipped": [{"update": at, "where": where} for at, where in log.skipped.items()],
            "best": self._scores(log, log.best),
            "last": self._scores(log, max(log.validation, default=None)),
            "fingerprint": run.data,
            "recipe": json_values(run.recipe),
        }

    @staticmethod
    def _scores(log: Log, update: int | None) -> dict[str, Any] | None:
        """Return what a validation measured, None in the place of values that are not finite.

        Return None without a validation.
        """
        if update is None:
            return None
        return {"update": update, **finite(log.validation.get(update, {}))}


def curves(shown: Sequence[Panel], thin: bool = False) -> dict[str, Any]:
    """Return the points of all curves, by panel, kind of record and run.

    Args:
        shown: the panels.
        thin: whether to return only the points that the charts draw.
    """
    return {
        panel.name: {
            kind: {run: _points(curve.thinned() if thin else curve) for run, curve in runs.items()}
            for kind, runs in panel.curves.items()
        }
        for panel in shown
    }


def _points(curve: Curve) -> dict[str, Sequence[float | None]]:
    """Return the points of a curve, with None for minutes where no report has a time."""
    minutes = curve.minutes if any(curve.minutes) else [None] * len(curve)
    return {"update": curve.updates, "minutes": minutes, "values": curve.values}


def read_runs(paths: Sequence[Path]) -> Report:
    """Read runs and their logs; a run may be training meanwhile.

    Runs are named after their directories; those with the same name after the directories around
    these, or if that does not tell all runs apart, all after their paths. A run that is given twice
    counts once.

    Raises:
        NmtError: a directory is no run, or was not trained, or its log is damaged or empty.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    places = [path.resolve() for path in paths]
    counts = Counter(place.name for place in places)
    names = [place.name if counts[place.name] == 1 else place.parent.name for place in places]
    if len({*names}) < len(names):
        names = [str(path) for path in paths]
    runs = {name: Run.open(path) for name, path in zip(names, paths, strict=True)}
    for run in runs.values():
        if {"averaged", "imported"} & run.recipe.keys():
            raise NmtError(
                f"{run.path}: is an average or an import, which has no log; give a run that "
                "`nmt train` has made"
            )
    return Report(runs, {name: read_log(run.path / LOG) for name, run in runs.items()})

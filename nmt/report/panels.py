"""The charts of a report: which numbers of the logs stand in which, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nmt.errors import NmtError
from nmt.recipe.registry import unknown
from nmt.report.charts import Chart, Line
from nmt.report.curves import Axis, Curve
from nmt.report.log import Log

TITLES = {
    "loss": "loss",
    "perplexity": "perplexity",
    "reward": "reward",
    "alignment": "alignment loss",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "target_tokens_per_second": "target tokens per second",
    "padding": "padding",
    "memory_mb": "memory in MB",
}
"""Titles of the panels of numbers in the log, in the order of the report."""

LOGARITHMIC = ("perplexity",)

HIDDEN = ("epoch", "seconds")
"""Numbers of the log that have no panel."""

KINDS = {"train": "training", "validation": "validation"}

Marks = Mapping[str, list[float]]
"""Places to mark on the x axis by kind, as in :class:`nmt.report.charts.Chart`."""

X_LABELS: dict[Axis, str] = {"update": "update", "minutes": "minutes of training"}


@dataclass(frozen=True)
class Panel:
    """A chart of one number, of all runs."""

    name: str
    """Key of the number in the log."""
    title: str
    curves: dict[str, dict[str, Curve]]
    """By kind of record, "train" or "validation", then by run."""

    def chart(self, axis: Axis, colours: Mapping[str, int], marks: Marks) -> Chart:
        """Return the chart over an axis.

        Args:
            axis: what the x axis counts.
            colours: number of the colour of each run.
            marks: places to mark, as in :class:`Chart`.
        """
        lines = []
        for kind, runs in self.curves.items():
            for run, curve in ((run, curve.thinned()) for run, curve in runs.items() if curve):
                words = [run] if len(colours) > 1 else []
                words += [KINDS[kind]] if len(self.curves) > 1 else []
                line = Line(
                    name=" ".join(words) or self.title,
                    x=curve.places(axis),
                    y=curve.values,
                    colour=colours[run],
                    thin=kind == "train" and len(self.curves) > 1,
                    label=f"run{colours[run]}.{kind}",
                )
                lines.append(line)
        return Chart(lines, X_LABELS[axis], logarithmic=self.name in LOGARITHMIC, marks=marks)


def panels(logs: Mapping[str, Log]) -> Iterator[Panel]:
    """Yield the panels of logs by run: the known ones in the order of `TITLES`, then metrics.

    Validation metrics come after loss and perplexity.
    """
    names = {
        kind: dict.fromkeys(name for log in logs.values() for name in log.names(kind))
        for kind in KINDS
    }
    metrics = sorted(set(names["validation"]) - set(TITLES))
    first, later = list(TITLES)[:2], list(TITLES)[2:]
    others = sorted({*names["train"]} - {*TITLES, *HIDDEN, *metrics})
    for name in [*first, *metrics, *later, *others]:
        curves = {
            kind: {run: curve for run, log in logs.items() if (curve := log.curve(kind, name))}
            for kind in KINDS
            if name in names[kind]
        }
        if any(curves.values()):
            yield Panel(name, TITLES.get(name, name), curves)


def choose(logs: Mapping[str, Log], wanted: str) -> Panel:
    """Return a panel by the key of its number, or one kind of it: "validation.loss".

    Raises:
        NmtError: there is no such panel.
    """
    known = {}
    for panel in panels(logs):
        known[panel.name] = panel
        for kind, runs in panel.curves.items():
            title = f"{KINDS[kind]} {panel.title}"
            known[f"{kind}.{panel.name}"] = Panel(panel.name, title, {kind: runs})
    if wanted not in known:
        raise NmtError(f"--svg: {unknown('panel', wanted, known)}")
    return known[wanted]

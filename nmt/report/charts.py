"""Charts of the numbers in logs, drawn by Matplotlib: for pages, and as SVG files for papers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from nmt.errors import NmtError, install
from nmt.messages import encodable
from nmt.recipe.registry import unknown
from nmt.report.log import Axis, Curve, Log

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

X_LABELS: dict[Axis, str] = {"update": "update", "minutes": "minutes of training"}

Marks = Mapping[str, list[float]]
"""Places to mark on the x axis, by kind; see :class:`Chart`."""

COLOURS = (
    "#1c7ed6",
    "#d9480f",
    "#2b9442",
    "#ae3ec9",
    "#b07d00",
    "#0c8599",
    "#e03131",
    "#7a52f4",
)
"""Colours of the lines, in turn; each has a contrast of at least 3 to the white and the dark
page."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
"""Strokes of the lines, when the colours begin again."""

DENSE = 300
"""Lines with more points are drawn thin."""

INK, GRID = "#333333", "#dddddd"

SIZE = (4.8, 2.7)
"""Width and height of a chart in inches."""

FRAME = (0.125, 0.15, 0.85, 0.78)
"""Left edge, lower edge, width and height of the plotting area, as shares of the chart."""


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    """Number of the colour, from 0."""
    thin: bool = False
    """Whether the line is in the background, for noisy values."""
    label: str | None = None
    """Identifier of the line's group in the SVG."""


@dataclass(frozen=True)
class Chart:
    """A chart of lines."""

    lines: Sequence[Line]
    x_label: str
    y_label: str = ""
    logarithmic: bool = False
    """Whether the y axis is logarithmic; ignored unless all values are positive."""
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Places on the x axis to mark with vertical lines, by "resumed" or "skipped"."""

    @property
    def x_limits(self) -> tuple[float, float]:
        """The ends of the x axis: from 0 to the last point."""
        return 0.0, max([*(x for line in self.lines for x in line.x), 0.0]) or 1.0

    def svg(self) -> str:
        """Return the chart as an SVG file that stands alone.

        Raises:
            NmtError: Matplotlib is not installed.
        """
        return picture({"": self})

    def inline(self, prefix: str, description: str) -> str:
        """Return the chart as an element of a page, in the colours of the page.

        Args:
            prefix: begins every identifier, so that each is unique in the page.
            description: the chart in words, for screen readers.
        """
        svg = _drawn({"": self}, alone=False)
        # Matplotlib knows no CSS, so two colours stand for the colours of the page.
        svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(GRID, "var(--line)")
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
        return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)

    def _draw(self, axes: Any) -> None:
        axes.grid(True, color=GRID, linewidth=0.6)
        axes.tick_params(length=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for line in self.lines:
            self._draw_line(axes, line)
        for kind, places in self.marks.items():
            style = ":" if kind == "resumed" else "--"
            for number, x in enumerate(places):
                name = f"{kind}.{number}"
                axes.axvline(x, color=INK, linewidth=0.9, linestyle=style, gid=name)
        axes.set_xlim(*self.x_limits)
        if self.logarithmic and all(y > 0 for line in self.lines for y in line.y):
            axes.set_yscale("log")
            # An axis of less than a decade may have minor ticks alone.
            axes.yaxis.set_minor_formatter(_plain_minor)
        axes.xaxis.set_major_formatter(_plain)
        axes.yaxis.set_major_formatter(_plain)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)

    def _name_lines(self, axes: Any) -> None:
        """Add a legend with the names of the lines, unchanged.

        Matplotlib reads a label with two "$" as a formula and omits a label that begins with "_".
        So the legend is made with numbers, which the names then replace.
        """
        drawn = axes.get_lines()[: len(self.lines)]
        legend = axes.legend(drawn, map(str, range(len(drawn))), frameon=False, fontsize=8)
        for text, line in zip(legend.get_texts(), self.lines, strict=True):
            text.set_parse_math(False)
            text.set_text(encodable(line.name))

    def _draw_line(self, axes: Any, line: Line) -> None:
        colour = COLOURS[line.colour % len(COLOURS)]
        dashes = DASHES[line.colour // len(COLOURS) % len(DASHES)]
        width = 1.0 if line.thin or len(line.x) > DENSE else 1.8
        # A line through one point would be invisible.
        marker = "o" if len(line.x) == 1 else None
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle=dashes,
            linewidth=width,
            alpha=0.55 if line.thin else 1.0,
            marker=marker,
            markersize=4,
            gid=line.label,
        )


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
    """Yield the panels of logs by run: known numbers in the order of `TITLES`, then metrics.

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


def picture(charts: Mapping[str, Chart]) -> str:
    """Return charts, one below another, as an SVG file that stands alone.

    Args:
        charts: the charts by their titles.

    Raises:
        NmtError: Matplotlib is not installed.
    """
    return _drawn(charts, alone=True)


def require_matplotlib() -> None:
    """Import Matplotlib.

    Raises:
        NmtError: Matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise NmtError(f"charts need Matplotlib; {install('report')}") from None


def describe(lines: Iterable[Line]) -> str:
    """Return the first, the last, the smallest and the greatest value of lines in words."""
    return "; ".join(
        f"{line.name}: from {line.y[0]:.4g} to {line.y[-1]:.4g}, "
        f"between {min(line.y):.4g} and {max(line.y):.4g}"
        for line in lines
    )


def _drawn(charts: Mapping[str, Chart], alone: bool) -> str:
    """Return charts as SVG; with `alone`, with legends and a background."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "axes.edgecolor": GRID,
        "axes.titlepad": 3,
        "axes.titlesize": 9,
        "font.family": "sans-serif",
        "font.size": 9,
        # Text stays text, which a reader can search and select.
        "svg.fonttype": "none",
        # A fixed salt gives fixed identifiers, so that equal charts are equal files.
        "svg.hashsalt": "nmt",
        **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], INK),
    }
    left, bottom, width, height = FRAME
    text = io.StringIO()
    with rc_context(style):
        size = SIZE[0], SIZE[1] * len(charts)
        figure = Figure(figsize=size, facecolor="white" if alone else "none")
        # Matplotlib counts from the bottom.
        for row, (title, chart) in enumerate(reversed([*charts.items()])):
            low, high = (row + bottom) / len(charts), height / len(charts)
            axes = figure.add_axes((left, low, width, high), facecolor="none")
            axes.set_title(title, loc="left", parse_math=False)
            chart._draw(axes)
            if alone and len(chart.lines) > 1:
                chart._name_lines(axes)
        canvas: Any = FigureCanvasSVG(figure)
        # No date either, for the same reason as the salt.
        canvas.print_svg(text, metadata=dict.fromkeys(["Date", "Creator", "Format", "Type"]))
    return re.sub(r'(?<= d=")[^"]+', _rounded, text.getvalue())


def _rounded(path: re.Match[str]) -> str:
    """Return the coordinates of a path with two decimals, a hundredth of a point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])


def _plain(value: float, _: object) -> str:
    return f"{value:,.7g}"


def _plain_minor(value: float, _: object) -> str:
    """Return the label of a minor tick, empty except for 2 and 5."""
    return _plain(value, None) if f"{value:e}"[0] in "25" else ""

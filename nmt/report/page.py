"""Reports as one HTML file that needs no network."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any

import yaml

from nmt.io.page import html_page
from nmt.messages import duration
from nmt.report import views
from nmt.report.charts import COLOURS, FRAME, Chart, describe
from nmt.report.curves import Axis
from nmt.report.document import ABSENT, Report, curves
from nmt.report.elements import folded, number, paragraph, section, table, titled
from nmt.report.panels import Panel

AXES: tuple[Axis, Axis] = ("update", "minutes")


def page(report: Report) -> str:
    """Return the page of a report.

    Raises:
        NmtError: Matplotlib is not installed.
    """
    document = report.document()
    names = list(report.runs)
    title = f"Training of {', '.join(names[:4])}{' and others' if names[4:] else ''}"
    sections = [
        section("runs", "Runs", _overview(document)),
        section("curves", "Curves", *_charts(report)),
    ]
    if len(names) > 1:
        sections.append(section("differences", "Differences", _differences(document)))
    sections += [
        section("recipes", "Recipes", *map(_recipe, document["runs"])),
        views.datasets(document),
        views.translations(document),
    ]
    drawn = {
        **document,
        "curves": curves(report.panels, thin=True),
        "frame": FRAME,
        "colours": report.colours,
    }
    style = _asset("page.css") + _switches(len(names))
    body = titled(title, _facts(document), sections)
    return html_page(title, body, style, drawn, _asset("page.js"))


def _facts(document: dict[str, Any]) -> str:
    runs = document["runs"]
    last = max(run["ended"] for run in runs)
    kinds = ", ".join(dict.fromkeys(str(run["architecture"]) for run in runs))
    languages = ", ".join(dict.fromkeys(" to ".join(run["languages"]) for run in runs))
    return f"{kinds}, {languages}; the last record is of {last.replace('T', ' ')}"


def _overview(document: dict[str, Any]) -> str:
    """Return the table of the runs: how long they trained, and their best validation."""
    runs = document["runs"]
    metrics = list(dict.fromkeys(key for run in runs for key in run["best"] or {}))
    head = ["run", "updates", "epochs", "training time", "target tokens/s", "memory in MB"]
    head += ["resumed", "skipped", *(f"best {name}" for name in metrics)]
    rows = [
        [
            run["name"],
            number(run["updates"]),
            number(run["epochs"]),
            duration(60 * run["minutes"]) if run["minutes"] else ABSENT,
            number(run["target_tokens_per_second"]),
            number(run["memory_mb"]),
            number(len(run["resumed"])),
            number(len(run["skipped"])),
            *(
                number((run["best"] or {}).get(name), 0 if name == "update" else 3)
                for name in metrics
            ),
        ]
        for run in runs
    ]
    note = "Speed is the median of the reports; “best” is the validation that training counts best."
    return table("The runs", head, rows) + paragraph(note)


def _charts(report: Report) -> list[str]:
    """Return the legend with its switches, and a figure for each panel."""
    charts = {axis: report.charts(axis) for axis in AXES}
    figures = [
        _figure(place, panel, {axis: charts[axis][panel.title] for axis in AXES})
        for place, panel in enumerate(report.panels)
    ]
    hint = (
        "A thin line is of training, a thick line of validation. Point at a chart, or move to it "
        "with Tab and along it with the arrow keys, to read the values. Long curves are drawn with "
        "the smallest and the greatest value of each pixel."
    )
    return [
        paragraph(hint),
        f'<div class="controls">{_axes()}{_legend(report.colours)}{_marks(report)}</div>',
        f'<div class="charts">{"".join(figures)}</div>',
    ]


def _axes() -> str:
    labels = {"update": "updates", "minutes": "training time"}
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{axis}" id="by-{axis}"'
        f"{' checked' if axis == 'update' else ''}> {label}</label>"
        for axis, label in labels.items()
    )
    return f"<fieldset><legend>Over</legend>{choices}</fieldset>"


def _legend(colours: dict[str, int]) -> str:
    runs = "".join(
        f'<label><input type="checkbox" id="run-{at}" checked> <svg width="22" height="10" '
        f'aria-hidden="true"><path d="M0 5H22" stroke="{COLOURS[at % len(COLOURS)]}" '
        f'stroke-width="3" stroke-dasharray="{_dash(at)}"/></svg> {escape(name)}</label>'
        for name, at in colours.items()
    )
    return f"<fieldset><legend>Runs</legend>{runs}</fieldset>"


def _dash(colour: int) -> str:
    return ("none", "8 3", "2 2", "9 3 2 3")[colour // len(COLOURS) % 4]


def _marks(report: Report) -> str:
    marks = [
        ("resumed", "2 2", any(log.resumed for log in report.logs.values())),
        ("skipped update", "6 3", any(log.skipped for log in report.logs.values())),
    ]
    return "".join(
        f'<span class="mark"><svg width="10" height="14" aria-hidden="true"><path d="M5 0V14" '
        f'stroke="currentColor" stroke-dasharray="{dash}"/></svg> {name}</span>'
        for name, dash, is_there in marks
        if is_there
    )


def _figure(place: int, panel: Panel, charts: dict[Axis, Chart]) -> str:
    """Return the charts of a panel over both axes, of which the page shows one."""
    drawn = []
    for axis, chart in charts.items():
        svg = chart.inline(f"{axis}{place}", f"{panel.title}: {describe(chart.lines)}")
        drawn.append(
            f'<div class="chart {axis}" tabindex="0" data-panel="{escape(panel.name)}" '
            f'data-axis="{axis}" data-last="{chart.x_limits[1]}">{svg}</div>'
        )
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>{''.join(drawn)}"
        '<output aria-live="polite"></output></figure>'
    )


def _switches(count: int) -> str:
    """Return the style that hides the curves of a run whose box is not checked."""
    return "\n".join(
        f'body:has(#run-{at}:not(:checked)) .chart [id*="-run{at}."] {{ display: none; }}'
        for at in range(count)
    )


def _differences(document: dict[str, Any]) -> str:
    names = [run["name"] for run in document["runs"]]
    if not document["differences"]:
        return paragraph("The recipes of the runs have the same values.")
    rows = [[key, *map(_value, values)] for key, values in document["differences"].items()]
    return table("Keys of the recipes whose values differ", ["key", *names], rows)


def _value(value: object) -> str:
    """Return a value as it stands in a recipe."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def _recipe(run: dict[str, Any]) -> str:
    text = yaml.safe_dump(run["recipe"], sort_keys=False, allow_unicode=True)
    return folded(f"Recipe of {run['name']}", f'<pre tabindex="0">{escape(text)}</pre>')


def _asset(name: str) -> str:
    return (files("nmt.report") / name).read_text(encoding="utf-8")

"""Reports and datasets as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import yaml

from nmt.data.dataset import Dataset
from nmt.io.page import html_page
from nmt.messages import duration
from nmt.report.charts import COLOURS, FRAME, Chart, Line, Panel, describe
from nmt.report.document import ABSENT, RunReport, curves, dataset_facts
from nmt.report.log import Axis

AXES: tuple[Axis, Axis] = ("update", "minutes")


def page(report: RunReport) -> str:
    """Return the page of a report.

    Raises:
        NmtError: Matplotlib is not installed.
    """
    document = report.document()
    names = list(report.runs)
    title = (
        f"Training of {', '.join(names[:4])}{f' and {len(names) - 4} more' if names[4:] else ''}"
    )
    sections = [
        section("runs", "Runs", _overview(document)),
        section("curves", "Curves", *_charts(report)),
    ]
    if "groups" in document:
        sections.append(section("groups", "Groups of runs", *_groups(document["groups"])))
    if len(names) > 1:
        sections.append(section("differences", "Differences", _differences(document)))
    sections += [
        section("recipes", "Recipes", *map(_recipe, document["runs"])),
        datasets(document),
        translations(document),
    ]
    if any(run["confidence"] for run in document["runs"]):
        sections.append(section("confidence", "Confidence", *_confidence(document["runs"])))
    drawn = {
        **document,
        "curves": curves(report.panels, thin=True),
        "frame": FRAME,
        "colours": report.colours,
    }
    style = _asset("page.css") + _switches(len(names))
    body = titled(title, _facts(document), sections)
    return html_page(title, body, style, drawn, _asset("page.js"))


def dataset_page(dataset: Dataset) -> str:
    """Return one page of HTML about a dataset, which needs no network."""
    manifest = dataset.manifest
    document = dataset_facts(dataset)
    recipe = yaml.safe_dump(manifest.recipe, sort_keys=False, allow_unicode=True)
    title = f"Dataset {dataset.path.resolve().name}"
    languages = f"{manifest.source_lang} to {manifest.target_lang}"
    sections = [
        section("data", "Data", *dataset_parts(document, is_open=True)),
        section("recipe", "Recipe", f'<pre tabindex="0">{escape(recipe)}</pre>'),
    ]
    body = titled(title, f"{languages}; fingerprint {manifest.fingerprint}", sections)
    style = _asset("page.css")
    return html_page(title, body, style, document)


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
    note = "Speed is the median of the reports; “best” is the best validation by train.best_metric."
    return table("The runs", head, rows) + paragraph(note)


def _charts(report: RunReport) -> list[str]:
    """Return the legend with its switches, and a figure for each panel."""
    charts = {axis: report.charts(axis) for axis in AXES}
    figures = [
        _figure(place, panel, {axis: charts[axis][panel.title] for axis in AXES})
        for place, panel in enumerate(report.panels)
    ]
    hint = (
        "Thin lines show training, thick lines validation. Point at a chart, or move to it "
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
    # The strokes of `charts.DASHES`, in SVG's notation.
    return ("none", "8 3", "2 2", "9 3 2 3")[colour // len(COLOURS) % 4]


def _marks(report: RunReport) -> str:
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
    """Return the charts of a panel over both axes; the page shows one at a time."""
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
    # By CSS alone, because the page must work where scripts are blocked.
    return "\n".join(
        # The dot tells run1 from run10.
        f'body:has(#run-{at}:not(:checked)) .chart [id*="-run{at}."] {{ display: none; }}'
        for at in range(count)
    )


def _differences(document: dict[str, Any]) -> str:
    names = [run["name"] for run in document["runs"]]
    if not document["differences"]:
        return paragraph("The recipes of the runs have the same values.")
    rows = [[key, *map(_value, values)] for key, values in document["differences"].items()]
    return table("Keys of the recipes whose values differ", ["key", *names], rows)


def _groups(groups: list[dict[str, Any]]) -> list[str]:
    """Return a table for each number of the best validations, with a row for each group."""
    head = ["group", "runs", "mean", "standard deviation", "standard error", "p"]
    note = (
        "The recipes of a group differ only in train.seed. Each number is of the best validations; "
        "p is the two-sided p-value of Welch’s t-test over the runs against the first group."
    )
    tables = []
    for metric in dict.fromkeys(metric for group in groups for metric in group["best"]):
        digits = 0 if metric == "update" else 3
        rows = []
        for group in groups:
            if score := group["best"].get(metric):
                cells = ("mean", "standard_deviation", "standard_error")
                shown = [number(score[cell], digits) for cell in cells]
                rows.append(
                    [group["name"], len(score["values"]), *shown, number(score["p_value"], 4)]
                )
        tables.append(table(f"best {metric}", head, rows))
    return [paragraph(note), *tables]


def _value(value: object) -> str:
    """Return a value as a recipe writes it."""
    if isinstance(value, str):
        return value
    # YAML ends a lone scalar with a line of three dots.
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def _recipe(run: dict[str, Any]) -> str:
    text = yaml.safe_dump(run["recipe"], sort_keys=False, allow_unicode=True)
    return folded(f"Recipe of {run['name']}", f'<pre tabindex="0">{escape(text)}</pre>')


def datasets(document: Mapping[str, Any]) -> str:
    """Return the section about the dataset of each run."""
    groups: dict[str, list[str]] = {}
    for run in document["runs"]:
        groups.setdefault(run["fingerprint"], []).append(run["name"])
    parts = []
    for fingerprint, names in groups.items():
        facts = document["datasets"][fingerprint]
        if len(groups) > 1:
            parts.append(heading(f"Dataset of {', '.join(names)}"))
        parts += [paragraph(facts["missing"])] if "missing" in facts else dataset_parts(facts)
    return section("data", "Data", *parts)


def dataset_parts(facts: Mapping[str, Any], is_open: bool = False) -> list[str]:
    """Return tables of a dataset: its splits, and what cleaning did, with examples.

    Args:
        facts: see :func:`nmt.report.document.dataset_facts`.
        is_open: whether the examples are shown at once.
    """
    languages = facts["languages"]
    head = ["split", "language", "pairs", "tokens", "unknown", "mean length", "median", "90 %"]
    rows = []
    for name, split in facts["splits"].items():
        for side, language in enumerate(languages):
            lengths = split["lengths"][side]
            tokens = split["tokens"][side]
            rows.append(
                [
                    name,
                    language,
                    number(split["pairs"]),
                    number(tokens),
                    f"{100 * split['unknown'][side] / max(1, tokens):.3f} %",
                    *(
                        number(lengths and lengths[key], int(key == "mean"))
                        for key in ("mean", "median", "most", "nearly_all", "greatest")
                    ),
                ]
            )
    sizes, used = facts["vocabulary"]["sizes"], facts["vocabulary"]["in_use"]
    uses = "; ".join(
        f"{language}: {count:,} of {size:,} tokens"
        for language, count, size in zip(languages, used, sizes, strict=True)
    )
    shared = "One vocabulary for both languages. " if facts["vocabulary"]["shared"] else ""
    parts = [
        paragraph(f"{facts['path']}; lengths are in tokens, with the end of the sentence."),
        table("Splits of the dataset", [*head, "99 %", "greatest"], rows),
        paragraph(f"{shared}In use in training sentences (a sample of 100,000 at most): {uses}."),
    ]
    for key, verb in (("dropped", "dropped pairs"), ("rewritten", "rewritten lines")):
        counts = facts[key]
        if counts:
            cells = [[reason.replace("_", " "), number(count)] for reason, count in counts.items()]
            parts.append(table(f"Training text: {verb}", ["step of cleaning", verb], cells))
        else:
            parts.append(paragraph(f"Training text: no {verb}."))
    for reason, pairs in facts["examples"].items():
        if pairs:
            heads = ("before", "after") if reason in facts["rewritten"] else languages
            title = f"Examples: {reason.replace('_', ' ')}"
            parts.append(folded(title, texts(title, heads, pairs), is_open=is_open))
    return parts


def translations(document: Mapping[str, Any]) -> str:
    """Return the section about the translations of the validation set."""
    parts = []
    for run in document["runs"]:
        facts = run["translations"]
        parts.append(heading(run["name"]) if len(document["runs"]) > 1 else "")
        parts += [paragraph(facts["missing"])] if "missing" in facts else _translations(facts)
    return section("translations", "Translations of the validation set", *parts)


def _translations(facts: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            number(int(update)),
            number(values["chrf"], 2),
            number(values["length_ratio"], 3),
            number(values["repeating"]),
            number(values["empty"]),
        ]
        for update, values in facts["updates"].items()
    ]
    head = ["update", "chrF", "length ratio", "with a repetition", "empty"]
    note = (
        "The length ratio is words of the translations by words of the references. A repetition is "
        "a 4-gram of words, in languages without spaces of characters, that occurs more than once "
        "and more often than in the reference."
    )
    worst = [
        folded(
            f"chrF {row['chrf']:.1f}, line {row['line']}: {row['source'][:80]}",
            texts(
                f"Line {row['line']}",
                ("", "text"),
                [
                    ("source", row["source"]),
                    ("reference", row["reference"]),
                    *((f"update {int(at):,}", text) for at, text in row["translations"].items()),
                ],
            ),
        )
        for row in facts["worst"]
    ]
    title = f"The {len(worst)} worst of the last validation, with their translations over time"
    return [
        table("Translations over time", head, rows),
        paragraph(note),
        folded(title, *worst),
    ]


def _confidence(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return a note, and the reliability diagram of each calibrated run."""
    note = (
        "How often lines with a confidence are good, which means that their chrF is above the "
        "median of the validation set; by cross-validation. The thin line is perfect."
    )
    figures = []
    perfect = Line("perfect", (0.0, 1.0), (0.0, 1.0), colour=1, thin=True)
    for number, run in enumerate(runs):
        if (about := run["confidence"]) is None:
            continue
        x, y = ([one[key] for one in about["bins"]] for key in ("confidence", "good"))
        chart = Chart([perfect, Line(run["name"], x, y)], "confidence", "share of good lines")
        error = f"expected calibration error {about['calibration_error']:.3f}"
        title = f"{run['name']}: {error}, median chrF {about['median_chrf']:.1f}"
        svg = chart.inline(f"confidence{number}", f"{title}; {describe(chart.lines)}")
        figures.append(f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>")
    return [paragraph(note), f'<div class="charts">{"".join(figures)}</div>']


def titled(title: str, facts: str, sections: list[str]) -> str:
    """Return the body of a page: a heading, a line of facts, and sections of HTML."""
    header = f'<h1>{escape(title)}</h1>\n<p class="hint">{escape(facts)}</p>'
    return f"<header>\n{header}\n</header>\n<main>\n" + "\n".join(sections) + "\n</main>"


def section(name: str, title: str, *parts: str) -> str:
    """Return a section of the page with its title."""
    inner = "\n".join(parts)
    return (
        f'<section aria-labelledby="h-{name}">\n<h2 id="h-{name}">{escape(title)}</h2>\n'
        f"{inner}\n</section>"
    )


def heading(text: str) -> str:
    """Return the title of a part of a section."""
    return f"<h3>{escape(text)}</h3>"


def folded(title: str, *parts: str, is_open: bool = False) -> str:
    """Return parts that are shown, or hidden if they `is_open`, when their title is clicked."""
    inner = "\n".join(parts)
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>\n{inner}\n</details>"


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f'<p class="hint">{escape(text)}</p>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that scrolls if it is wider than the page.

    Args:
        caption: name of the table.
        head: heads of the columns.
        rows: cells of each row; the first is the head of the row. Numbers are aligned right.
    """
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(_row(row) for row in rows)
    return (
        # Without tabindex the keyboard could not scroll the box.
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def texts(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are sentences, in any direction of writing."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td dir="auto">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<table class="texts"><caption>{escape(caption)}</caption><thead>'
        f"<tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def number(value: object, digits: int = 0) -> str:
    """Return a number with separators of thousands; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def _row(cells: Sequence[object]) -> str:
    first, *others = cells
    shown = "".join(f"<td{_kind(cell)}>{escape(str(cell))}</td>" for cell in others)
    return f'<tr><th scope="row">{escape(str(first))}</th>{shown}</tr>'


def _kind(cell: object) -> str:
    """Return the class of a cell that holds a number."""
    text = str(cell).replace(",", "").replace("–", "0").replace(":", "")
    try:
        float(text)
    except ValueError:
        return ""
    return ' class="number"'


def _asset(name: str) -> str:
    return (files("nmt.report") / name).read_text(encoding="utf-8")

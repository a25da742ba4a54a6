"""Print scores as tables that never mix values with different signatures.

A column holds values of one metric with one signature; the signature is below the table. If a
metric has several signatures, its columns are numbered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from nmt.evaluation.comparison import Result
from nmt.evaluation.groups import GroupScore
from nmt.messages import printable

Form = Literal["text", "markdown", "latex"]
Row = Sequence[str]
Note = tuple[str, str]
"""A term and its explanation."""

SIGNIFICANT = 0.05
PAPER_NAMES = {
    "bleu": "BLEU",
    "tokenized_bleu": "BLEU",
    "paper_bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "wer": "WER",
    "per": "PER",
    "comet": "COMET",
    "aer": "AER",
}
"""Names of metrics in papers; a metric with the name of another one has another signature."""

METHODS = {"bs": "paired bootstrap resampling", "ar": "paired approximate randomisation"}


def table(results: Sequence[Result], form: Form, test_set: str) -> str:
    """Return a table of systems (rows) and metrics (columns), with signatures below.

    Args:
        results: results in the order of columns and rows.
        form: plain text, Markdown, or LaTeX for the package booktabs.
        test_set: name of the test set, for the notes.
    """
    rows = {result.system: [printable(result.system)] for result in results}
    heads, notes = ["system"], [("test set", printable(test_set))]
    if groups := {result.system: result.runs for result in results if result.group}:
        heads.append("runs")
        for system, runs in groups.items():
            rows[system].append(str(len(runs)))
            if runs != (system,):
                notes.append((rows[system][0], printable(", ".join(runs))))
    keys = [(result.score.metric, result.score.signature) for result in results]
    columns = list(dict.fromkeys(keys))
    names = [PAPER_NAMES.get(name, name) if form == "latex" else name for name, _ in columns]
    for label, column in zip(_labels(names), columns, strict=True):
        of_column = [result for result, key in zip(results, keys, strict=True) if key == column]
        cells = _cells(label, of_column)
        heads += cells
        by_system = {result.system: result for result in of_column}
        for system, row in rows.items():
            result = by_system.get(system)
            row += ["-" if result is None else write(result) for write in cells.values()]
        is_error = not of_column[0].score.higher_is_better
        notes.append((label, column[1] + (" (lower is better)" if is_error else "")))
    write_table = {"text": _text, "markdown": _markdown, "latex": _latex}[form]
    return write_table([heads, *rows.values()], notes + _samples(results))


def _labels(names: Sequence[str]) -> list[str]:
    """Return the names of the metrics, numbered if a metric has several signatures."""
    ambiguous = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} [{names[: at + 1].count(name)}]" if name in ambiguous else name
        for at, name in enumerate(names)
    ]


def _cells(label: str, results: Sequence[Result]) -> dict[str, Callable[[Result], str]]:
    """Return the columns of one metric: heads, and functions from a result to a cell."""
    cells: dict[str, Callable[[Result], str]] = {label: lambda result: f"{result.score.value:.2f}"}
    if any(result.mean is not None for result in results):
        cells["mean ± 95%"] = lambda result: f"{result.mean:.2f} ± {result.interval:.2f}"
    if any(result.group is not None for result in results):
        cells["sd"] = lambda result: _of_group(result.group, "standard_deviation")
        cells["se"] = lambda result: _of_group(result.group, "standard_error")
    if any(result.p_value is not None for result in results):
        cells["p"] = _p_value
    return cells


def _of_group(group: GroupScore | None, field: str) -> str:
    value = getattr(group, field, None)
    return "-" if value is None else f"{value:.2f}"


def _p_value(result: Result) -> str:
    if result.p_value is None:
        return "-"
    return f"{result.p_value:.4f}{'*' if result.p_value < SIGNIFICANT else ' '}"


def _samples(results: Sequence[Result]) -> list[Note]:
    """Return notes that explain means, intervals and p-values, if there are any."""
    notes = []
    samples = next((result.samples for result in results if result.samples), "")
    if any(result.mean is not None for result in results):
        notes.append(("mean ± 95%", f"of bootstrap samples, {samples}"))
    if any(result.group for result in results):
        notes.append(("sd, se", "standard deviation of the runs, standard error of their mean"))
    if baseline := next((result.baseline for result in results if result.baseline), None):
        method = METHODS[samples.partition(":")[0]] if samples else "Welch's t-test over the runs"
        drawn = f", {samples}" if samples else ""
        notes.append(("p", f"{method} against {baseline}{drawn}; * below {SIGNIFICANT}"))
    return notes


def _text(rows: Sequence[Row], notes: Sequence[Note]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *(f"{head}: {text}" for head, text in notes)])


def _markdown(rows: Sequence[Row], notes: Sequence[Note]) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    # The rule below a column that is aligned right has at least ---: in it.
    widths = [max(4, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(_aligned(row, widths))} |" for row in rows]
    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, f"| {' | '.join(rules)} |")
    return "\n".join([*lines, "", *(f"- {head}: `{text}`" for head, text in notes)])


def _aligned(row: Row, widths: Sequence[int]) -> list[str]:
    """Return the cells padded: the first aligned left, numbers aligned right."""
    numbers = zip(row[1:], widths[1:], strict=True)
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in numbers)]


def _latex(rows: Sequence[Row], notes: Sequence[Note]) -> str:
    heads, *body = (" & ".join(_escaped(cell.strip()) for cell in row) + r" \\" for row in rows)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}",
            r"\toprule",
            heads,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par{{\footnotesize {_escaped(f'{head}: {text}')}}}" for head, text in notes),
        ]
    )


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
    }
)


def _escaped(text: str) -> str:
    return text.translate(_LATEX)

"""Scores as tables in which no value can be taken for one with another signature.

A column holds values of one metric with one signature, which stands below the table. Where the
same metric is there with several signatures, every such column has a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from nmt.evaluation.comparison import Result

Form = Literal["text", "markdown", "latex"]
Row = Sequence[str]
Note = tuple[str, str]
"""What is explained, and how."""

SIGNIFICANT = 0.05
METHODS = {"bs": "paired bootstrap resampling", "ar": "paired approximate randomisation"}


def table(results: Sequence[Result], form: Form, test_set: str) -> str:
    """A row for each system, columns for each metric, and below them all that decides about values.

    Args:
        results: in the order of columns and rows.
        form: text for people, Markdown, or LaTeX for the package booktabs.
        test_set: what the systems translated, in words.
    """
    rows = {each.system: [each.system] for each in results}
    heads, notes = ["system"], [("test set", test_set)]
    columns = list(dict.fromkeys((each.score.metric, each.score.signature) for each in results))
    for label, (metric, signature) in zip(_labels(columns), columns, strict=True):
        own = [it for it in results if (it.score.metric, it.score.signature) == (metric, signature)]
        cells = _cells(label, own)
        heads += cells
        found = {each.system: each for each in own}
        for system, row in rows.items():
            row += [write(found[system]) if system in found else "-" for write in cells.values()]
        is_error = not own[0].score.higher_is_better
        notes.append((label, signature + (" (lower is better)" if is_error else "")))
    write_table = {"text": _text, "markdown": _markdown, "latex": _latex}[form]
    return write_table([heads, *rows.values()], notes + _samples(results))


def _labels(columns: Sequence[tuple[str, str]]) -> list[str]:
    """The names of the metrics; with a number where one has several signatures."""
    names = [metric for metric, _ in columns]
    ambiguous = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} [{names[: at + 1].count(name)}]" if name in ambiguous else name
        for at, name in enumerate(names)
    ]


def _cells(label: str, results: Sequence[Result]) -> dict[str, Callable[[Result], str]]:
    """What is said of a result by one metric: the head of each column, and how to fill it."""
    cells: dict[str, Callable[[Result], str]] = {label: lambda it: f"{it.score.value:.2f}"}
    if any(each.mean is not None for each in results):
        cells["mean ± 95%"] = lambda it: f"{it.mean:.2f} ± {it.interval:.2f}"
    if any(each.p_value is not None for each in results):
        cells["p"] = _p_value
    return cells


def _p_value(result: Result) -> str:
    if result.p_value is None:
        return "-"
    return f"{result.p_value:.4f}{'*' if result.p_value < SIGNIFICANT else ' '}"


def _samples(results: Sequence[Result]) -> list[Note]:
    """What means, intervals and p-values are, where there are any."""
    notes = []
    samples = next((each.samples for each in results if each.samples), "")
    if any(each.mean is not None for each in results):
        notes.append(("mean ± 95%", f"of bootstrap samples, {samples}"))
    if baseline := next((each.baseline for each in results if each.baseline), None):
        method = METHODS[samples.partition(":")[0]]
        notes.append(("p", f"{method} against {baseline}, {samples}; * below {SIGNIFICANT}"))
    return notes


def _text(rows: Sequence[Row], notes: Sequence[Note]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *(f"{head}: {text}" for head, text in notes)])


def _markdown(rows: Sequence[Row], notes: Sequence[Note]) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(4, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(_aligned(row, widths))} |" for row in rows]
    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, f"| {' | '.join(rules)} |")
    return "\n".join([*lines, "", *(f"- {head}: `{text}`" for head, text in notes)])


def _aligned(row: Row, widths: Sequence[int]) -> list[str]:
    """The first cell on the left of its column, numbers on the right."""
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

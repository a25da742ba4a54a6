"""Plots of a run's log as SVG: curves of loss, learning rate and each metric."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from nmt.errors import NmtError
from nmt.io import files

Curve = dict[int, float]
"""Values by the number of the update after which they were measured."""

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 30, 30
NOT_METRICS = {"record", "time", "update", "loss", "perplexity", "best"}
"""Keys of a validation record that are not metrics."""

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def plot(log: Path, picture: Path) -> None:
    """Draw the curves of a log.

    Args:
        log: the log of a run, written by ``nmt train``.
        picture: the SVG file to write, atomically.

    Raises:
        NmtError: the log has no report yet, or is damaged.
    """
    panels = read_curves(log)
    if not panels:
        raise NmtError(f"{log}: no report to draw yet; train for at least train.log_every updates")
    last = max(
        update for curves in panels.values() for curve in curves.values() for update in curve
    )
    drawn = [
        f'<g transform="translate(0 {HEIGHT * row})">{_panel(title, curves, last)}</g>'
        for row, (title, curves) in enumerate(panels.items())
    ]
    size = f'width="{WIDTH}" height="{HEIGHT * len(panels)}"'
    style = 'font-family="sans-serif" font-size="11" fill="none"'
    with files.whole_file(picture) as partial:
        partial.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(drawn) + "\n</svg>\n",
            encoding="utf-8",
        )


def read_curves(log: Path) -> dict[str, dict[str, Curve]]:
    """Return the curves by name, for each panel by title.

    If a resumed run repeated an update, the later record counts.

    Raises:
        NmtError: a line is not a record of training.
    """
    panels: dict[str, dict[str, Curve]] = {}
    try:
        with files.open_regular(log) as file:
            lines = file.read().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        lines = []
    for number, line in enumerate(lines, start=1):
        try:
            _add(json.loads(line), panels)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            raise NmtError(
                f"{log}:{number}: damaged: not a record of training; remove the line"
            ) from None
    return panels


def _add(record: dict[str, Any], panels: dict[str, dict[str, Curve]]) -> None:
    """Add the values of a record to the curves."""
    if record["record"] == "train":
        keys = {"loss": {"training": "loss"}, "learning rate": {"": "lr"}}
        keys |= {"reward": {"": "reward"}} if "reward" in record else {}
    elif record["record"] == "validation":
        metrics = sorted(record.keys() - NOT_METRICS)
        keys = {"loss": {"validation": "loss"}} | {name: {"": name} for name in metrics}
    else:
        return
    update = record["update"]
    if type(update) is not int or update < 1:
        raise ValueError(update)
    for title, curves in keys.items():
        for name, key in curves.items():
            if math.isfinite(record[key]):
                panels.setdefault(title, {}).setdefault(name, {})[update] = record[key]


def _panel(title: str, curves: dict[str, Curve], last: int) -> str:
    """Return the SVG of a panel: a frame with minimum and maximum, and a line per curve."""
    values = [value for curve in curves.values() for value in curve.values()]
    low, high = min(values), max(values)
    spread = high - low or 1.0
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(update: int, value: float) -> str:
        x = LEFT + (right - LEFT) * update / last
        return f"{x:.1f},{bottom - (bottom - TOP) * (value - low) / spread:.1f}"

    parts = [
        f'<path stroke="#999" d="M{LEFT} {TOP}V{bottom}H{right}"/>',
        _text(LEFT, TOP - 10, "start", title),
        _text(LEFT - 6, TOP + 4, "end", f"{high:.4g}"),
        _text(LEFT - 6, bottom + 4, "end", f"{low:.4g}"),
        _text(LEFT, bottom + 16, "middle", "0"),
        _text(right, bottom + 16, "end", f"update {last:,}"),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(update, value) for update, value in sorted(curve.items()))
        parts.append(f'<polyline stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        parts.append(_text(right - 90 * number, TOP - 10, "end", name, colour))
    return "".join(parts)


def _text(x: int, y: int, anchor: str, text: str, colour: str = "#333") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'

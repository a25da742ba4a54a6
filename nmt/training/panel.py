"""A panel that stays at the bottom of a terminal while a model trains."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from nmt.messages import surviving_stderr

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 30
"""Characters of the curve of the loss."""
PAUSE = 0.1
"""Least seconds between two drawings."""


class Panel:
    """Progress, the curve of the training loss, and the last and the best validation."""

    def __init__(self, last: int, done: int) -> None:
        """Prepare a panel on stderr.

        Args:
            last: number of the last update.
            done: updates already done.
        """
        self.last = last
        self.update = done
        self.times = ""
        self.losses: list[float] = []
        self.validations: dict[str, str] = {}
        self.drawn = 0.0
        self.console = Console(file=sys.stderr, force_terminal=True)
        self.live = Live(
            console=self.console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._table,
        )

    def start(self) -> None:
        """Draw the panel."""
        with surviving_stderr():
            self.live.start()

    def close(self) -> None:
        """Draw the panel a last time, and leave it above what follows."""
        with surviving_stderr():
            self.live.stop()

    def advance(self, update: int, times: str) -> None:
        """Show that an update is done; `times` says how long it took and will take."""
        self.update, self.times = update, times
        if time.monotonic() - self.drawn >= PAUSE:
            with surviving_stderr():
                self.live.refresh()
            self.drawn = time.monotonic()

    def add_loss(self, loss: float) -> None:
        """Add a point to the curve of the training loss."""
        self.losses.append(loss)

    def add_validation(self, shown: str, is_best: bool) -> None:
        """Show a validation; the best one stays."""
        self.validations["validation"] = shown
        if is_best:
            self.validations["best"] = shown

    def write(self, line: str) -> None:
        """Print a line above the panel."""
        with surviving_stderr():
            self.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self.last, completed=self.update, width=CURVE_WIDTH)
        table.add_row("updates", _beside(bar, f"{self.update:,}/{self.last:,}{self.times}"))
        if self.losses:
            curve = sparkline(self.losses, CURVE_WIDTH).ljust(CURVE_WIDTH)
            table.add_row("loss", _beside(curve, f"{self.losses[-1]:.3f}"))
        for name, shown in self.validations.items():
            table.add_row(name, shown)
        return table


def _beside(picture: ProgressBar | str, text: str) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_row(picture, text)
    return row


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve as a line of bars, from the least value to the greatest.

    Args:
        values: finite numbers; where they are more than `width`, means of neighbours are drawn.
        width: most characters of the line.
    """
    size = min(len(values), width)
    edges = [len(values) * at // size for at in range(size + 1)]
    means = [statistics.fmean(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low or 1.0)
    return "".join(BARS[round((value - low) * scale)] for value in means)

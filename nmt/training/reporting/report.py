"""Reports of training: lines for people on stderr, JSON records for programs in the log.

A panel that stays at the bottom of a terminal while a model trains.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from signal import Signals

import torch
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch import Tensor

from nmt.data.loader import Update
from nmt.io import documents, files
from nmt.io.documents import finite
from nmt.messages import duration, one_line, say, surviving_stderr
from nmt.training.reporting.loggers import Logger

SILENCE = 60.0
"""Seconds without output after which a line of progress is printed."""


@dataclass
class RunningStats:
    """Sums over the updates of one process since the last report; kept on the device.

    Updates and norms of the gradient, which are the same in all processes, are counted by the first
    one alone, so that the sums of any number of processes can be resumed by any other.
    """

    updates: Tensor | float = 0.0
    target_tokens: Tensor | float = 0.0
    tokens: Tensor | float = 0.0
    """Tokens of both sides, padding not included."""
    positions: Tensor | float = 0.0
    """Positions of both sides, padding included."""
    sentences: Tensor | float = 0.0
    loss: Tensor | float = 0.0
    nll: Tensor | float = 0.0
    grad_norm: Tensor | float = 0.0
    reward: Tensor | float = 0.0
    """Mean reward of each sentence's samples, if translations are sampled."""
    alignment: Tensor | float = 0.0
    """Cross-entropy of guided alignment, if that is trained."""
    linked_tokens: Tensor | float = 0.0
    """Target tokens that have links, with guided alignment."""

    def add(self, update: Update, is_finite: Tensor, **measured: Tensor) -> None:
        """Add an update, unless its gradient was not finite.

        Args:
            update: the update, whose sentences and tokens are counted.
            is_finite: bool scalar; False adds nothing.
            measured: scalars to add, by the names of the other fields.
        """
        counts = {
            "target_tokens": sum(len(batch.target_output) for batch in update.batches),
            "tokens": sum(batch.num_tokens for batch in update.batches),
            "positions": update.num_positions,
            "sentences": sum(batch.num_sentences for batch in update.batches),
        }
        for name, count in counts.items():
            # A product instead of an `if`, which would wait for the GPU.
            self._add(name, is_finite.double() * count)
        for name, value in measured.items():
            # Sums stay on the device until a report; double, because they grow over many updates.
            self._add(name, torch.where(is_finite, value.double(), 0.0))

    def _add(self, name: str, value: Tensor) -> None:
        setattr(self, name, getattr(self, name) + value)

    def restore(self, sums: dict[str, float]) -> None:
        """Add the sums saved in a checkpoint."""
        for name, value in vars(self).items():
            setattr(self, name, value + sums.get(name, 0.0))

    def sums(self) -> dict[str, float]:
        """Return the sums as numbers; waits for the device."""
        return {name: float(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Record:
    """One report; the field names are the keys of the JSON record."""

    update: int
    epoch: int
    loss: float
    """The minimised loss, in nats for likelihoods, per target token that the model has read."""
    perplexity: float
    """Per target token, from the unsmoothed likelihood."""
    lr: float
    grad_norm: float
    """Before any clipping; mean over the updates of the report."""
    target_tokens_per_second: float
    """Speed of all processes together, without padding."""
    padding: float
    """Share of the positions of both sides that hold no token."""
    memory_mb: float
    """Peak megabytes of this process: of its tensors on a GPU, else resident."""
    seconds: float
    """Seconds of training so far, over all resumes."""
    reward: float | None = None
    """Mean over sentences and their samples, if the loss samples translations."""
    alignment: float | None = None
    """Cross-entropy of guided alignment, in nats per target token with links."""


class TrainingReport:
    """Writes records to the log file, and lines to stderr, at a terminal above a panel."""

    def __init__(
        self,
        log: Path,
        max_updates: int,
        first: int,
        quiet: bool = False,
        max_seconds: float = math.inf,
        loggers: Iterable[Logger] = (),
    ) -> None:
        """Prepare to append to a log.

        Args:
            log: file of JSON lines; created if it is missing.
            max_updates: number of the last update, for progress and time to go.
            first: number of updates already done.
            quiet: whether to write nothing, as on all processes but the main one.
            max_seconds: limit of the seconds of training, for time to go.
            loggers: receive the records, too.
        """
        self.loggers = list(loggers)
        self.quiet = quiet
        self.log = log
        if not quiet and log.exists():
            with documents.open_regular(log) as file:
                lines, _, _ = file.read().rpartition(b"\n")
            os.truncate(log, len(lines) + 1 if lines else 0)  # drop a line that a crash cut off
        self.max_updates = max_updates
        self.max_seconds = max_seconds
        self.first = first
        self.started = self.spoke = time.monotonic()
        self.panel: ProgressPanel | None = None  # until training begins

    def __enter__(self) -> TrainingReport:
        return self

    def __exit__(self, *_: object) -> None:
        if self.panel:
            self.panel.close()
        # A copy, because `_send` removes a logger that fails.
        for logger in [*self.loggers]:
            self._send(logger, logger.close)

    def begin(self) -> None:
        """Start the clock for time to go, and the panel at a terminal that can show it."""
        self.started = self.spoke = time.monotonic()
        if not self.quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self.panel = ProgressPanel()
            self.panel.start()

    def to_go(self, update: int, seconds: float) -> timedelta:
        """Return the time to go after an update; `seconds` is the time of training so far."""
        spent = time.monotonic() - self.started
        # By the speed since this start: the machine may be another one.
        by_updates = spent / (update - self.first) * (self.max_updates - update)
        return duration(max(0.0, min(by_updates, self.max_seconds - seconds)))

    def advance(self, update: int, seconds: float) -> None:
        """Show one more update: on the panel, or as a line after a long silence."""
        if self.panel:
            elapsed = duration(time.monotonic() - self.started)
            times = f"{elapsed} | to go {self.to_go(update, seconds)}"
            done = self.share_done(update, seconds)
            self.panel.advance(done, f"{self._shown(update, seconds)} | {done:.0%} | {times}")
        elif time.monotonic() - self.spoke >= SILENCE:
            done = self.share_done(update, seconds)
            self.say(f"update {self._shown(update, seconds)} is done, {done:.0%} of the training")

    def share_done(self, update: int, seconds: float) -> float:
        """Return the share of the training that is done, by the limit that ends it first."""
        return min(1.0, max(update / self.max_updates, seconds / self.max_seconds))

    def _shown(self, update: int, seconds: float) -> str:
        """Return the number of an update, and the number of the last one unless time ends first."""
        by_updates = update / self.max_updates >= seconds / self.max_seconds
        return f"{update:,}/{self.max_updates:,}" if by_updates else f"{update:,}"

    def record(self, kind: str, values: dict[str, object]) -> None:
        """Append a JSON record with the time of day, and pass it to the loggers."""
        if not self.quiet:
            time_of_day = datetime.now().astimezone().isoformat(timespec="seconds")
            # Opened for each record, so that a log can be moved, rotated or read while training
            # runs.
            with files.named(self.log), self.log.open("a", encoding="utf-8") as file:
                record = {"record": kind, **finite(values), "time": time_of_day}
                # A whole line at once, so that nobody reads half a record.
                file.write(json.dumps(record) + "\n")
        for logger in [*self.loggers]:
            self._send(logger, partial(logger.add, kind, values))

    def _send(self, logger: Logger, action: Callable[[], None]) -> None:
        """Let a logger act; one that fails is left out from then on, and training goes on."""
        try:
            action()
        # A logger that lost its network must not end a training of days.
        except Exception as error:
            self.loggers.remove(logger)
            why = " ".join(str(error).split())
            left_out = "no more records go there, and training continues"
            self.say(one_line(f"nmt: warning: train.{logger.name}: {why}; {left_out}"))

    def say(self, message: str) -> None:
        """Print a line for people."""
        self.spoke = time.monotonic()
        if self.panel:
            self.panel.write(message)
        elif not self.quiet:
            say(message)

    def note(self, message: str) -> None:
        """Print a line for people that begins with date and time."""
        self.say(f"{datetime.now():%Y-%m-%dT%H:%M:%S} | {message}")

    def acknowledge(self, number: Signals) -> None:
        """Confirm a signal at once; called by its handler."""
        by = "interrupted" if number == Signals.SIGINT else f"interrupted by {number.name}"
        again = "; Ctrl-C again ends at once, without it" if number == Signals.SIGINT else ""
        with suppress(RuntimeError):  # the signal came while another line was being written
            self.say(f"{by}: saving after this update{again}")

    def training(self, record: Record) -> None:
        """Report the updates since the last report."""
        optional = ("reward", "alignment")
        values = {
            name: value
            for name, value in asdict(record).items()
            if value is not None or name not in optional
        }
        self.record("train", values)
        if self.panel and math.isfinite(record.loss):
            self.panel.add_loss(record.loss)
        left = self.to_go(record.update, record.seconds)
        reward = "" if record.reward is None else f"reward {record.reward:.4f} | "
        guided = "" if record.alignment is None else f"alignment {record.alignment:.3f} | "
        self.note(
            f"epoch {record.epoch} | update {self._shown(record.update, record.seconds)} | "
            f"loss {record.loss:.3f} | {reward}{guided}ppl {record.perplexity:.2f} | "
            f"lr {record.lr:.2e} | grad norm {record.grad_norm:.2f} | "
            f"{record.target_tokens_per_second:,.0f} target tokens/s | "
            f"padding {record.padding:.1%} | {record.memory_mb:,.0f} MB | to go {left}"
        )

    def skipped(self, update: int, where: str, sentences: int) -> None:
        """Report an update that was skipped because its gradient was not finite."""
        self.record("skipped", {"update": update, "where": where, "sentences": sentences})
        self.note(
            f"skipped | update {update} | the gradient of {sentences} sentences is not finite, "
            f"{where}"
        )

    def validation(
        self, update: int, scores: dict[str, float], best: bool, metric: str = "score"
    ) -> None:
        """Report the scores of a validation, and whether it is the best by a metric."""
        self.record("validation", {"update": update, **scores, "best": best})
        shown = " | ".join(f"{name} {value:.3f}" for name, value in scores.items())
        if self.panel:
            self.panel.add_validation(f"update {update} | {shown}", best)
        by_metric = f" | best {metric} so far"
        self.note(f"validation | update {update} | {shown}{by_metric if best else ''}")


def summarize(
    sums: dict[str, float],
    *,
    update: int,
    epoch: int,
    lr: float,
    seconds: float,
    total: float,
    device: torch.device,
    has_reward: bool = False,
) -> Record:
    """Return the record of the updates since the last report.

    Args:
        sums: of :meth:`RunningStats.sums`, added over all processes.
        update: number of the last update.
        epoch: epoch of the last update.
        lr: learning rate of the last update.
        seconds: seconds of training since the last report.
        total: seconds of training so far.
        device: device of this process, whose peak of memory is reported.
        has_reward: whether the loss samples and rewards translations.
    """
    target_tokens, updates = max(sums["target_tokens"], 1.0), max(sums["updates"], 1.0)
    return Record(
        update=update,
        epoch=epoch,
        loss=sums["loss"] / target_tokens,
        perplexity=perplexity(sums["nll"] / target_tokens),
        lr=lr,
        grad_norm=sums["grad_norm"] / updates,
        target_tokens_per_second=sums["target_tokens"] / max(seconds, 1e-9),
        padding=1 - sums["tokens"] / max(sums["positions"], 1.0),
        memory_mb=peak_memory_mb(device),
        seconds=total,
        reward=sums["reward"] / max(sums["sentences"], 1.0) if has_reward else None,
        alignment=sums["alignment"] / sums["linked_tokens"] if sums["linked_tokens"] else None,
    )


def perplexity(nats: float) -> float:
    """Return exp(nats), the perplexity of a cross-entropy per token; infinite on overflow."""
    # math.exp raises an OverflowError instead of returning infinity.
    return float(torch.tensor(nats, dtype=torch.float64).exp())


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak megabytes of this process: of its tensors if it uses a GPU, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    # getrusage counts bytes on macOS, and kilobytes on Linux.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


BARS = "▁▂▃▄▅▆▇█"

CURVE_WIDTH = 30
"""Characters of the curve of the loss."""

PAUSE = 0.1
"""Least seconds between two drawings."""


class ProgressPanel:
    """Progress, the curve of the training loss, and the last and the best validation."""

    def __init__(self) -> None:
        """Prepare a panel on stderr."""
        self.done = 0.0
        self.progress = ""
        self.losses: list[float] = []
        self.validations: dict[str, str] = {}
        self.drawn = 0.0
        self.console = Console(file=sys.stderr, force_terminal=True)
        self.live = Live(
            console=self.console,
            auto_refresh=False,
            # Results on stdout must not pass through the panel.
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

    def advance(self, done: float, progress: str) -> None:
        """Show the share of the training that is done, and the progress in words."""
        self.done, self.progress = done, progress
        # Drawing at each update would slow small models down.
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
        bar = ProgressBar(total=1.0, completed=self.done, width=CURVE_WIDTH)
        table.add_row("updates", _beside(bar, self.progress))
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

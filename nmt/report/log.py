"""Read the log of a run, ``log.jsonl``, as curves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nmt.errors import NmtError
from nmt.io import documents

Axis = Literal["update", "minutes"]

Numbers = dict[str, float]

REQUIRED = {"train": ("loss", "lr", "seconds"), "validation": ("loss",)}
"""Numbers that every record of a kind has."""

TEXTS = {"record", "time", "where"}
"""Keys whose values are text."""

MAX_NUMBER = 2**53
"""Numbers of updates and of seconds are smaller."""

GREATEST = 1e100
"""Greater values cannot be drawn; curves leave them out, like infinity and NaN."""

POINTS = 600
"""Number of points of a thinned curve, about one for each pixel of its picture."""


@dataclass(frozen=True)
class Curve:
    """Values that were measured during training, each after an update."""

    updates: Sequence[float]
    minutes: Sequence[float]
    """Minutes of training at these updates."""
    values: Sequence[float]

    def __len__(self) -> int:
        return len(self.updates)

    def places(self, axis: Axis) -> Sequence[float]:
        """Return where the values are on an axis."""
        return self.updates if axis == "update" else self.minutes

    def thinned(self, most: int = POINTS) -> Curve:
        """Return the curve with at most about `most` points, which a picture cannot tell apart.

        The updates are divided into `most` / 2 equal ranges. The smallest and the greatest value
        of each range stay, and so do the first and the last value of the curve.
        """
        if len(self) <= most:
            return self
        updates, values = np.asarray(self.updates), np.asarray(self.values)
        # The outermost edges divide nothing.
        edges = np.linspace(updates[0], updates[-1], most // 2 + 1)[1:-1]
        ranges = np.split(np.arange(len(self)), np.searchsorted(updates, edges))
        kept = {0, len(self) - 1}
        for part in ranges:
            if len(part):
                kept |= {int(part[values[part].argmin()]), int(part[values[part].argmax()])}

        def take(column: Sequence[float]) -> Sequence[float]:
            return [column[at] for at in sorted(kept)]

        return Curve(take(self.updates), take(self.minutes), take(self.values))


@dataclass
class Log:
    """The records of a training; a resumed training replaces the records that it repeats."""

    path: Path
    train: dict[int, Numbers] = field(default_factory=dict)
    """The numbers of each report by their names, by the number of the update."""
    validation: dict[int, Numbers] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    """Place of the first infinite value or NaN, by the number of the skipped update."""
    resumed: list[int] = field(default_factory=list)
    """The updates after which training resumed."""
    bests: list[int] = field(default_factory=list)
    """The updates whose validation was the best so far."""
    begun: str = ""
    """Time of the first record."""
    ended: str = ""
    """Time of the last record."""

    @property
    def best(self) -> int | None:
        """The update of the best validation; None if none has a score."""
        return self.bests[-1] if self.bests else None

    @property
    def last(self) -> int:
        """The last update that has a record."""
        return max([*self.train, *self.validation, 0])

    @cached_property
    def _clock(self) -> tuple[list[int], list[float]]:
        """The seconds of training after some updates; after the last report at its speed."""
        reports = sorted((update, numbers["seconds"]) for update, numbers in self.train.items())
        updates, seconds = [0, *(at for at, _ in reports)], [0.0, *(spent for _, spent in reports)]
        if self.last > updates[-1] and len(updates) > 1:
            speed = (seconds[-1] - seconds[-2]) / (updates[-1] - updates[-2])
            seconds.append(seconds[-1] + speed * (self.last - updates[-1]))
            updates.append(self.last)
        return updates, seconds

    def minutes(self, updates: Sequence[int]) -> list[float]:
        """Return the minutes of training after updates, by interpolation between the reports.

        Validation and saving are not counted. After the last report its speed is assumed.
        """
        minutes: list[float] = (np.interp(updates, *self._clock) / 60).tolist()
        return minutes

    def names(self, kind: str) -> list[str]:
        """Return the names of the numbers of the records of a kind, in the order of the log."""
        return list(dict.fromkeys(name for numbers in self._of(kind).values() for name in numbers))

    def curve(self, kind: str, name: str) -> Curve:
        """Return the values of a name in the records of a kind, without infinite values and NaN."""
        values = {
            update: numbers[name]
            for update, numbers in self._of(kind).items()
            if name in numbers and abs(numbers[name]) < GREATEST
        }
        updates = sorted(values)
        return Curve(updates, self.minutes(updates), [values[update] for update in updates])

    def _of(self, kind: str) -> dict[int, Numbers]:
        return self.train if kind == "train" else self.validation

    def _add(self, record: dict[str, Any]) -> None:
        """Add a record.

        Raises:
            ArithmeticError, LookupError, TypeError, ValueError: the record is damaged.
        """
        kind, update = record["record"], record["update"]
        # bool is a subclass of int.
        if type(update) is not int or not 1 <= update < MAX_NUMBER:
            raise ValueError(update)
        self.begun = self.begun or str(record.get("time", ""))
        self.ended = str(record.get("time", ""))
        if kind == "resumed":
            self._resume(update)
        elif kind == "skipped":
            self.skipped[update] = str(record["where"])
        elif kind in REQUIRED:
            numbers = {
                name: value
                for name, value in record.items()
                if name not in {*TEXTS, "update", "best"} and value is not None
            }
            unknown = (name for name in REQUIRED[kind] if record[name] is None)
            numbers |= dict.fromkeys(unknown, math.nan)  # infinite or not a number
            for name in numbers:
                math.isfinite(numbers[name])  # raises an error if it is not a number
            if not 0 <= numbers.get("seconds", 0) < MAX_NUMBER:
                raise ValueError(numbers["seconds"])
            self._of(kind)[update] = numbers
            if record.get("best"):
                self.bests.append(update)

    def _resume(self, update: int) -> None:
        """Remove the records after the update from which a training resumed."""
        for records in (self.train, self.validation, self.skipped):
            for later in [number for number in records if number > update]:
                del records[later]
        self.bests = [number for number in self.bests if number <= update]
        self.resumed.append(update)


def read_log(path: Path) -> Log:
    """Return the log at a path; an incomplete last line, being written now, is left out.

    Raises:
        NmtError: a line is not a record of training, or there is no report yet.
    """
    log = Log(path)
    try:
        with documents.open_regular(path) as file:
            lines = file.read().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        lines = []
    for number, line in enumerate(lines, start=1):
        try:
            log._add(json.loads(line))
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            raise NmtError(
                f"{path}:{number}: damaged: not a record of training; remove the line"
            ) from None
    if not log.last:
        raise NmtError(f"{path}: no report yet; train for at least train.log_every updates")
    return log

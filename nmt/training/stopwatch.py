"""A stopwatch for the time of training itself, without validation and saving."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Counts seconds while running, and the seconds of the current lap."""

    def __init__(self, before: float = 0.0, seconds_since_report: float = 0.0) -> None:
        """Make a stopped stopwatch.

        Args:
            before: seconds already counted.
            seconds_since_report: those of them that belong to the current lap.
        """
        self._counted = before
        self._lap = before - seconds_since_report
        self._since: float | None = None

    def start(self) -> None:
        """Start counting."""
        self._since = time.monotonic()

    @property
    def total(self) -> float:
        """Return the seconds counted so far."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._counted + running

    @property
    def seconds_since_report(self) -> float:
        """Return the seconds of the current lap."""
        return self.total - self._lap

    def lap(self) -> float:
        """End the current lap, and return its seconds."""
        now = self.total
        seconds, self._lap = now - self._lap, now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop counting within the context."""
        self._counted, self._since = self.total, None
        try:
            yield
        finally:
            self.start()

"""Time spent on training itself, without validation and saving."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Counts seconds while it runs."""

    def __init__(self, before: float = 0.0, seconds_since_report: float = 0.0) -> None:
        """Stop at `before` seconds, of which `seconds_since_report` are of the current lap."""
        self._counted = before
        self._lap = before - seconds_since_report
        self._since: float | None = None

    def start(self) -> None:
        """Begins to count."""
        self._since = time.monotonic()

    @property
    def total(self) -> float:
        """Seconds counted so far."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._counted + running

    @property
    def seconds_since_report(self) -> float:
        """Seconds counted since the last lap."""
        return self.total - self._lap

    def lap(self) -> float:
        """Seconds counted since the last lap."""
        now = self.total
        seconds, self._lap = now - self._lap, now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count while the context lasts."""
        self._counted, self._since = self.total, None
        try:
            yield
        finally:
            self.start()

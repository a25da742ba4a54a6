"""Requests to stop: signals that let an update finish and a checkpoint be written."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What Slurm, torchrun and people send; the exit status is 128 plus the signal's number."""


class StopRequests:
    """While it is entered, signals are noted instead of ending the process.

    A second Ctrl-C ends the process at once; launchers repeat the others.
    """

    def __init__(self, acknowledge: Callable[[signal.Signals], None] | None = None) -> None:
        """Receives nothing yet.

        Args:
            acknowledge: called with the first signal, in its handler.
        """
        self.received = 0
        self._acknowledge = acknowledge
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequests:
        for number in CAUGHT:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_main, self.received = not self.received, number
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])  # type: ignore[arg-type]
        if is_main and self._acknowledge:
            self._acknowledge(signal.Signals(number))

"""Requests to stop: signals that let an update finish and a checkpoint be written."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What Slurm, torchrun and people send; the exit status is 128 plus the signal's number."""


class StopRequests:
    """While it is entered, signals are noted instead of ending the process.

    A second Ctrl-C ends the process at once; launchers repeat the others.
    """

    def __init__(self) -> None:
        self.received = 0
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
        self.received = number
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])  # type: ignore[arg-type]

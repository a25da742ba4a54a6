"""Stop signals: training finishes the update and writes a checkpoint before it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

from nmt.messages import redirect_to_null

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that Slurm, torchrun, users and terminals that close send; the exit status is 128 plus
the number."""


class StopRequests:
    """Within the context, records stop signals instead of ending the process.

    A second Ctrl-C ends the process at once. Other signals do not, because launchers repeat them.
    SIGHUP stays ignored where it is, as with nohup.
    """

    def __init__(self, acknowledge: Callable[[signal.Signals], None] | None = None) -> None:
        """Prepare to catch signals; the context manager installs the handlers.

        Args:
            acknowledge: called with the first signal, inside the signal handler.
        """
        self.received = 0
        self._acknowledge = acknowledge
        self._before: dict[int, object] = {}
        self._terminals = [output for output in (1, 2) if os.isatty(output)]

    def __enter__(self) -> StopRequests:
        for number in CAUGHT:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
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
        is_first_signal, self.received = not self.received, number
        if number == signal.SIGHUP:  # nothing more can be written to the terminal
            redirect_to_null(*self._terminals)
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])  # type: ignore[arg-type]
        if is_first_signal and self._acknowledge:
            self._acknowledge(signal.Signals(number))

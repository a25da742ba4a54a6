"""Worker processes of one thread each: on a CPU faster than threads within a batch."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

import torch

from nmt.errors import NmtError
from nmt.runtime.processes import end_with_parent, starting_workers

T = TypeVar("T")
R = TypeVar("R")


class Workers(Generic[T, R]):
    """A pool of processes that apply a function to items.

    The processes are forked at the first use, so that they share the memory of the function, such
    as the weights of a model, with this process.
    """

    def __init__(
        self,
        function: Callable[[T], R],
        count: int,
        ignored: Sequence[signal.Signals] = (signal.SIGINT,),
    ) -> None:
        """Start no process yet.

        Args:
            function: applied to each item.
            count: number of processes; with 1, `map` does all work in this process.
            ignored: signals that this process handles for all.
        """
        self.function = function
        self.count = count
        self.ignored = ignored
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, thing: T) -> Future[R]:
        """Let a process apply the function to an item.

        Returns:
            The future result. If a process was killed, it raises BrokenProcessPool, and the next
            call starts new processes.
        """
        try:
            return self._started().submit(_apply, thing)
        except BrokenProcessPool:
            self._pool = None
            return self._started().submit(_apply, thing)

    def start(self) -> None:
        """Start the processes now."""
        self._started().submit(int).result()

    def close(self) -> None:
        """Let the processes end after what was submitted; does not wait for them."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            sys.stdout.flush()  # or each process would write the buffered output
            context = get_context("fork")
            given = (self.function, self.ignored)
            with starting_workers():
                self._pool = ProcessPoolExecutor(self.count, context, _adopt, given)
        return self._pool

    def map(self, things: Sequence[T]) -> Iterator[R]:
        """Yield the result of the function for each item, in order.

        If an error, an interruption or the closing of the generator ends the iteration early, the
        processes are killed at once. The next call starts new ones.

        Raises:
            NmtError: a process was killed. Errors of the function are raised, too.
        """
        if self.count == 1 or len(things) < 2:
            yield from map(self.function, things)
            return
        pool = self._started()
        try:
            # The pool's own `map` cancels waiting futures, on which a broken pool fails.
            waiting = deque(pool.submit(_apply, thing) for thing in things)
            while waiting:
                yield waiting.popleft().result()
        except BaseException as error:
            if pool is self._pool:  # and no other call has ended it
                self._pool = None
                _end(pool)
            if not isinstance(error, BrokenProcessPool):
                raise
            raise NmtError(
                "a worker was killed, perhaps for lack of memory; use fewer --workers or "
                "smaller --batch-tokens"
            ) from None


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool; the pool's shutdown would wait for their work."""
    for process in list((pool._processes or {}).values()):
        process.kill()  # as `kill_workers` of Python 3.14 does
    # Without this, `shutdown` waits for the rest of a half-sent result.
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    pool.shutdown()


_function: Callable[[Any], Any]  # of this worker


def _adopt(function: Callable[[Any], Any], ignored: Sequence[signal.Signals]) -> None:
    global _function
    _function = function
    torch.set_num_threads(1)
    for number in ignored:  # the main process handles these for all
        signal.signal(number, signal.SIG_IGN)
    _leave_sockets()
    end_with_parent()


def _leave_sockets() -> None:
    """Let go of the main process's sockets: a connection ends when all processes have closed it.

    Standard error may be a socket, of systemd's journal, and stays.
    """
    numbers = [int(name) for name in os.listdir("/dev/fd")]
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        # A number that is free could become another file, which a socket's object would close.
        with suppress(OSError):  # that of the listing
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(null, number)
    os.close(null)


def _apply(thing: Any) -> Any:
    return _function(thing)

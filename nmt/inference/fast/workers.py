"""Worker processes of one thread each: on a CPU faster than threads within a batch."""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from nmt.errors import NmtError
from nmt.lazy import torch
from nmt.runtime.processes import end_with_parent, leave_sockets, starting_workers

T = TypeVar("T")
R = TypeVar("R")

TRIM_SECONDS = 10.0
"""Seconds between two times that freed memory goes back to the kernel."""


class Workers(Generic[T, R]):
    """A pool of processes that apply a function to items.

    The processes are forked at the first use, so that they share the memory of the function, such
    as the weights of a model, with this process.
    """

    def __init__(self, function: Callable[[T], R], count: int) -> None:
        """Start no process yet.

        Args:
            function: applied to each item.
            count: number of processes; with 1, `map` does all work in this process.
        """
        self.function = function
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            sys.stdout.flush()  # or each process would write the buffered output
            context = get_context("fork")
            with starting_workers():
                self._pool = ProcessPoolExecutor(self.count, context, _adopt, (self.function,))
        return self._pool

    def map(self, things: Sequence[T]) -> Iterator[R]:
        """Yield the result of the function for each item, in order.

        If an error, an interruption or the closing of the generator ends the iteration early, the
        processes are killed at once. The next call starts new ones.

        Raises:
            NmtError: a process was killed. Errors of the function are raised, too.
        """
        # A pool's start and transfers cost more than one item gains.
        if self.count == 1 or len(things) < 2:
            yield from map(giving_back_memory(self.function), things)
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
                "a worker was killed, perhaps for lack of memory; lower workers (--workers) or "
                "batch_tokens (--batch-tokens)"
            ) from None


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool; the pool's shutdown would wait for their work."""
    for process in list((pool._processes or {}).values()):
        process.kill()  # as `kill_workers` of Python 3.14 does
    # Without this, `shutdown` waits for the rest of a half-sent result.
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    pool.shutdown()


_function: Callable[[Any], Any]  # of this worker


def _adopt(function: Callable[[Any], Any]) -> None:
    global _function
    _function = giving_back_memory(function)
    # Processes do not wait for one another in each operator, as threads of one batch do.
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles this for all
    leave_sockets()
    end_with_parent()


def _apply(thing: Any) -> Any:
    return _function(thing)


def giving_back_memory(function: Callable[[T], R]) -> Callable[[T], R]:
    """Return a function that also gives freed memory back to the kernel, every ten seconds.

    Batches of many shapes leave holes between lasting objects, such as oneDNN's kernels, and glibc
    by itself returns only the end of its heap. Without this function a process that translates
    grows for minutes, to twice the size. Once in ten seconds the call takes less than a hundredth
    of the time.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    due = time.monotonic() + TRIM_SECONDS

    def called(thing: T) -> R:
        """Call the function, and give memory back every ten seconds."""
        nonlocal due
        result = function(thing)
        if trim is not None and time.monotonic() >= due:
            trim(0)
            due = time.monotonic() + TRIM_SECONDS
        return result

    return called

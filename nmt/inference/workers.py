"""Processes of one thread each that share work: on a CPU faster than threads inside a batch."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

import torch

from nmt.errors import NmtError
from nmt.runtime.processes import end_with_parent, starting_workers

T = TypeVar("T")
R = TypeVar("R")


class Workers(Generic[T, R]):
    """Applies a function to many things, in several processes where there are several things.

    The processes are forked at the first use, so that they share what the function holds, such as
    the weights of a model, with this one.
    """

    def __init__(self, function: Callable[[T], R], count: int) -> None:
        """Starts nothing yet; with a `count` of 1, all is done in this process."""
        self.function = function
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def map(self, things: Sequence[T]) -> Iterator[R]:
        """What the function gives for each thing, in order.

        The processes end at once, whatever they are doing, where not all is taken: by an error, an
        interruption, or a generator that is closed. The next call starts others.

        Raises:
            NmtError: a process was killed. What the function raises is raised here, too.
        """
        if self.count == 1 or len(things) < 2:
            yield from map(self.function, things)
            return
        if self._pool is None:
            sys.stdout.flush()  # or each process would write what waits to be written
            context = get_context("fork")
            with starting_workers():
                self._pool = ProcessPoolExecutor(self.count, context, _adopt, (self.function,))
        pool = self._pool
        try:
            # Not the pool's own `map`: it cancels what waits, which a pool that breaks trips over.
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
    """Ends the processes of a pool; its own shutdown waits for what they are doing."""
    for process in list((pool._processes or {}).values()):
        process.kill()  # as `kill_workers` of Python 3.14 does
    # Or the rest of a result that was half sent would be waited for.
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    pool.shutdown()


_function: Callable[[Any], Any]  # of this worker


def _adopt(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process answers it for all
    end_with_parent()


def _apply(thing: Any) -> Any:
    return _function(thing)

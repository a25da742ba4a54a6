"""Processes that translate for the server, each at the other end of a socket.

The event loop itself reads and writes the sockets. So there is no thread between a request and its
process, and the server knows which batch a killed process had.
"""

from __future__ import annotations

import asyncio
import atexit
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from nmt.errors import NmtError
from nmt.inference import LineTranslator, Request
from nmt.inference.fast.workers import giving_back_memory
from nmt.inference.markup import Dialect
from nmt.inference.markup.lines import translate_markup
from nmt.inference.request import TranslationOptions
from nmt.runtime.processes import end_with_parent, leave_sockets

T = TypeVar("T")
R = TypeVar("R")

Pair = tuple[str, str]
"""Source and target language."""

Fields = dict[str, Any]
"""A translation in JSON; always with its ``text``."""
SIZE = 8
"""Bytes of the length that precedes a pickled item."""


@dataclass(frozen=True)
class BatchOptions(TranslationOptions):
    """Languages and form of translations; the lines of a batch share their options.

    For alternatives, `count` is the number of next tokens to try.
    """

    pair: Pair
    """Languages."""
    dialect: Dialect | None = None
    """Markup of the lines; None for plain text."""
    alternatives: bool = False
    """Whether to find translations that differ in the next word after the prefix."""


@dataclass(frozen=True)
class LineBatch:
    """Lines that are translated at once."""

    options: BatchOptions
    requests: list[Request]


class BatchTranslator:
    """Translates a batch with the model of its languages; runs in the worker processes."""

    def __init__(self, translators: Mapping[Pair, LineTranslator]) -> None:
        self.translators = translators

    def __call__(self, batch: LineBatch) -> list[list[Fields]]:
        """Return the translations of each line, best first.

        Raises:
            NmtError: no loaded model has these languages, or it does not support the options.
        """
        options, translator = batch.options, self.translators.get(batch.options.pair)
        if translator is None:
            raise NmtError(f"{'-'.join(options.pair)} is not served any more")
        if options.dialect:
            lines = [request.text for request in batch.requests]
            return [
                [{"text": text}] for text in translate_markup(translator, lines, options.dialect)
            ]
        if options.alternatives:
            from nmt.inference.alternatives import alternatives

            proposed = alternatives(translator, batch.requests, options.count)
            return [[vars(alternative) for alternative in line] for line in proposed]
        by_line = translator.translations(
            batch.requests, options.count, options.scored, options.aligned
        )
        if not options.scored:
            return [[{"text": translation.text} for translation in line] for line in by_line]
        written = []
        for line in by_line:
            fields = [translator.fields(translation, options.aligned) for translation in line]
            if options.aligned:
                # All translations of a line have one source, so the first one names its units.
                fields[0][f"source_{options.aligned}"] = line[0].units()[0]
            if len(parts := line[0].parts()) > 1:
                fields[0]["sentences"] = parts
            written.append(fields)
        return written


class WorkerKilledError(Exception):
    """A process was killed while it worked."""


class Processes(Generic[T, R]):
    """A pool of processes of one thread that apply a function to items.

    They are forked from this process, so that they share the memory of the function, such as the
    weights of a model.
    """

    def __init__(self, function: Callable[[T], R], count: int) -> None:
        """Start the processes.

        Args:
            function: applied to each item.
            count: number of processes.

        Raises:
            OSError: a process cannot be started; no process stays.
        """
        self._function = function
        self._is_retired = False
        self._all: set[_Process] = set()
        try:
            for _ in range(count):
                self._all.add(self._start())
        except OSError:
            for process in self._all:
                process.kill()
                process.end()
            raise
        # Use the last used process next: its caches are warm, or it was just started.
        self._idle = asyncio.LifoQueue[_Process]()
        for process in self._all:
            self._idle.put_nowait(process)

    async def apply(self, thing: T) -> R:
        """Let an idle process apply the function to an item. If cancelled, the process is killed.

        Raises:
            WorkerKilledError: the process was killed. Errors of the function are raised, too.
        """
        process = await self._idle.get()
        try:
            process = self._living(process)
            is_result, value = await process.ask(thing)
        except (WorkerKilledError, asyncio.CancelledError):
            # A cancelled process would go on computing; only a kill frees its core.
            process.kill()  # the next item starts another process
            raise
        finally:
            self._idle.put_nowait(process)
            # The pool was retired while this process was busy.
            if self._is_retired:
                self.retire()
        if not is_result:
            raise value
        result: R = value
        return result

    def _start(self) -> _Process:
        return _Process(self._function)

    def _living(self, process: _Process) -> _Process:
        """Return the process, or a new process if it was killed."""
        if process.is_alive():
            return process
        started = self._start()
        self._all = self._all - {process} | {started}
        process.end()
        return started

    def retire(self) -> None:
        """Let each process end as soon as it is idle."""
        self._is_retired = True
        while not self._idle.empty():
            self._idle.get_nowait().end()

    def close(self) -> None:
        """End all processes at once."""
        for process in self._all:
            process.kill()


class _Process:
    """A process, and this end of its socket."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._socket, theirs = socket.socketpair()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            # Closed in this process, so that the death of the other one ends the stream.
            with theirs:
                self._process = get_context("fork").Process(
                    target=_work, args=(function, theirs), daemon=True
                )
                self._process.start()
        except OSError:
            self._socket.close()
            raise
        atexit.register(self.kill)  # before multiprocessing waits for it

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.is_alive()

    async def ask(self, thing: Any) -> Any:
        """Return the answer of the process.

        Raises:
            WorkerKilledError: the process was killed.
        """
        try:
            if self._streams is None:
                # Now, because no event loop ran yet when the process was started.
                self._streams = await asyncio.open_connection(sock=self._socket)
            reader, writer = self._streams
            writer.write(_framed(thing))
            await writer.drain()
            size = int.from_bytes(await reader.readexactly(SIZE), "little")
            answer = await reader.readexactly(size)
        except (EOFError, OSError):
            raise WorkerKilledError("a process was killed while it translated") from None
        # Written by our own forked process, never by a client.
        return pickle.loads(answer)

    def end(self) -> None:
        """Let the process end when it is idle."""
        atexit.unregister(self.kill)  # otherwise the registration keeps the pipes open
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].transport.abort()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        atexit.unregister(self.kill)


def _framed(thing: Any) -> bytes:
    pickled = pickle.dumps(thing)
    return len(pickled).to_bytes(SIZE, "little") + pickled


def _work(function: Callable[[Any], Any], end: socket.socket) -> None:
    """Apply the function to arriving items, in a new process, until the other end is closed."""
    # There is a process for each core.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # A terminal or systemd may send these to all processes; the main process handles them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leave_sockets(end.fileno())
    end_with_parent()
    function = giving_back_memory(function)
    answer: tuple[bool, Any]
    with end.makefile("rb") as items, suppress(EOFError, OSError):
        while size := items.read(SIZE):
            thing = pickle.loads(items.read(int.from_bytes(size, "little")))
            try:
                answer = True, function(thing)
            except Exception as error:
                answer = False, error
            end.sendall(_framed(answer))

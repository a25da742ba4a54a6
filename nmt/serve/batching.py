"""Batches over the requests of all clients: lines that wait at the same time share a batch."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

from nmt.inference import Request
from nmt.serve.workers import BatchOptions, Fields, LineBatch, WorkerKilledError

LINES_PER_TURN = 32
"""Largest number of lines that a job gives to a batch while other jobs wait."""
SHORT_LINE = 200
"""Lines with up to this many characters count as equally long."""

Translate = Callable[[LineBatch], Awaitable[list[list[Fields]]]]
"""Function that lets a process translate a batch."""


class QueueFullError(Exception):
    """Too many lines wait; try again after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many lines are waiting; try again in {seconds} s")
        self.seconds = seconds


# By identity: two clients may send the same lines.
@dataclass(eq=False)
class Job:
    """The lines of one client's request."""

    options: BatchOptions
    requests: Sequence[Request]
    results: list[list[Fields] | None]
    waiting: list[int]
    """Numbers of the lines that no process has yet."""
    left: int
    """Number of lines without a result."""
    done: asyncio.Future[None]

    def size(self, line: int) -> int:
        """Return the number of characters of a line, at least SHORT_LINE."""
        return max(SHORT_LINE, len(self.requests[line].text))

    def take(self, most: int, size: int) -> list[int]:
        """Take at most `most` waiting lines, half to twice as long as `size`."""
        fitting = (at for at in self.waiting if size <= 2 * self.size(at) <= 4 * size)
        taken = list(islice(fitting, most))
        self.waiting = sorted({*self.waiting} - {*taken})
        return taken

    def finish(self, line: int, result: list[Fields]) -> None:
        """Record the result of a line."""
        self.results[line] = result
        self.left -= 1
        # The client may have gone, which cancels its future.
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the job with an error."""
        self.waiting.clear()
        if not self.done.done():
            self.done.set_exception(error)


class Batcher:
    """Gathers the lines of all clients into batches for a few processes.

    The jobs take turns. A free process gets the next lines of the job whose turn it is, and lines
    of later jobs with the same options. A job gives a few dozen lines at a time, so that a long
    document does not delay other clients. A batch holds only lines half to twice as long as its
    first, since the longest line delays the whole batch. No process takes more than its share of
    all lines, so that no other process is idle.
    """

    def __init__(
        self, translate: Translate, slots: int, batch_lines: int, queue_lines: int, pause: float
    ) -> None:
        """Prepare to gather; :meth:`run` does the work.

        Args:
            translate: lets a process translate a batch.
            slots: number of batches that are translated at the same time.
            batch_lines: most lines of a batch.
            queue_lines: most lines that wait.
            pause: seconds for which a batch that is not full waits for more lines while another
                batch is translated.
        """
        self._translate_batch = translate
        self.free = asyncio.Semaphore(slots)
        self.slots = slots
        self.batch_lines = batch_lines
        self.queue_lines = queue_lines
        self.pause = pause
        self.jobs: deque[Job] = deque()
        self.arrived = asyncio.Event()
        self.running: set[asyncio.Task[None]] = set()
        self.num_running = 0  # lines
        self.speed = 0.0  # lines per second in the last batches

    @property
    def num_waiting(self) -> int:
        """Number of lines that no process has yet."""
        return sum(len(job.waiting) for job in self.jobs)

    def check_room(self, lines: int) -> None:
        """Check that so many more lines may wait; an empty queue takes any number.

        Raises:
            QueueFullError: too many lines wait already.
        """
        waiting = self.num_waiting
        # Otherwise a request larger than the queue would never be admitted.
        if waiting and waiting + lines > self.queue_lines:
            raise QueueFullError(max(1, round(waiting / self.speed)) if self.speed else 1)

    async def translate(
        self, requests: Sequence[Request], options: BatchOptions
    ) -> list[list[Fields]]:
        """Return the translations of each line. Cancelling the caller drops its waiting lines.

        Raises:
            NmtError: the model does not support the options.
        """
        if not requests:
            return []
        numbers = list(range(len(requests)))
        done = asyncio.get_running_loop().create_future()
        job = Job(options, requests, [None] * len(requests), numbers, len(requests), done)
        self.jobs.append(job)
        self.arrived.set()
        try:
            await job.done
        finally:
            # Also if the client has gone, whose lines must not take a process.
            job.waiting.clear()
        return [result for result in job.results if result is not None]

    async def run(self) -> None:
        """Translate waiting lines, until cancelled."""
        while True:
            await self.free.acquire()
            while not self.num_waiting:
                self.arrived.clear()
                await self.arrived.wait()
            # Only while another batch is translated: an idle server answers at once.
            if self.running and self.num_waiting < self.batch_lines:
                await asyncio.sleep(self.pause)
            if lines := self._next():
                self.num_running += len(lines)
                task = asyncio.create_task(self._run(lines))
                # asyncio only holds tasks weakly, so one without a reference may vanish.
                self.running.add(task)
                task.add_done_callback(self.running.discard)
            else:  # their clients went away meanwhile
                self.free.release()

    def _next(self) -> list[tuple[Job, int]]:
        """Take the lines of the next batch: their jobs and numbers."""
        while self.jobs and not self.jobs[0].waiting:
            self.jobs.popleft()
        if not self.jobs:
            return []
        first = self.jobs[0]
        size = first.size(first.waiting[0])
        share = ceil((self.num_waiting + self.num_running) / self.slots)
        room = min(share, self.batch_lines)
        chosen: list[tuple[Job, int]] = []
        turns = deque(job for job in self.jobs if job.options == first.options)
        while turns and room:
            job = turns.popleft()
            if lines := job.take(min(LINES_PER_TURN, room), size):
                chosen += [(job, line) for line in lines]
                room -= len(lines)
                # To the end, so that the next batch begins with another client.
                self.jobs.remove(job)
                self.jobs.append(job)
                turns.append(job)
        return chosen

    async def _run(self, lines: list[tuple[Job, int]]) -> None:
        """Translate a batch, and free its process."""
        start = time.monotonic()
        try:
            await self._translate(lines)
        finally:
            self.num_running -= len(lines)
            self.free.release()
        speed = len(lines) / (time.monotonic() - start)
        self.speed = 0.9 * self.speed + 0.1 * speed if self.speed else speed

    async def _translate(self, lines: list[tuple[Job, int]], is_again: bool = False) -> None:
        """Give each job its results; after an error, try each job alone.

        So an error, or a line that kills its process, fails one job alone. A job that kills its
        process alone is tried once more: perhaps the machine lacked memory for another reason.
        Jobs whose clients disconnected are not tried.
        """
        lines = [(job, line) for job, line in lines if not job.done.done()]
        jobs = list(dict.fromkeys(job for job, _ in lines))
        if not jobs:
            return
        try:
            batch = LineBatch(jobs[0].options, [job.requests[line] for job, line in lines])
            results = await self._translate_batch(batch)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    await self._translate([(of, line) for of, line in lines if of is job])
            elif isinstance(error, WorkerKilledError) and not is_again:
                await self._translate(lines, is_again=True)
            else:
                jobs[0].fail(error)
        else:
            for (job, line), result in zip(lines, results, strict=True):
                job.finish(line, result)

"""Processes of the server."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.serve.workers import Processes, WorkerKilledError


def with_processes(
    function: Callable[[Any], Any], steps: Callable[[Processes[Any, Any]], Awaitable[Any]]
) -> Any:
    """What the steps return with two processes that apply the function."""

    async def run() -> Any:
        processes = Processes(function, 2)
        try:
            return await asyncio.wait_for(steps(processes), 60)
        finally:
            processes.close()

    return asyncio.run(run())


def children() -> set[int]:
    """Numbers of the living children of this process."""
    numbers = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {int(number) for number in numbers if _state(number) != "Z"}


def _state(number: str) -> str:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


def test_items_are_shared_by_processes_of_one_thread() -> None:
    async def steps(processes: Processes[Any, Any]) -> list[Any]:
        return await asyncio.gather(*map(processes.apply, ["x" * 10**6, *"abcdefg"]))

    results = with_processes(lambda item: (item, os.getpid(), torch.get_num_threads()), steps)
    assert [item for item, *_ in results] == ["x" * 10**6, *"abcdefg"]
    assert len({number for _, number, _ in results} - {os.getpid()}) == 2
    assert {threads for *_, threads in results} == {1}


def test_no_process_stays_behind_if_another_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, started = socket.socketpair, iter([True])

    def socketpair() -> Any:
        if next(started, False):
            return pair()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", socketpair)
    before = children()
    with pytest.raises(OSError, match="Too many open files"):
        Processes(str, 2)
    assert children() == before


def test_an_error_of_the_function_is_raised_and_the_process_goes_on() -> None:
    async def steps(processes: Processes[Any, Any]) -> list[Any]:
        for _ in range(2):
            with pytest.raises(ValueError, match="invalid literal"):
                await processes.apply("one")
        return await asyncio.gather(processes.apply("1"), processes.apply("2"))

    assert with_processes(int, steps) == [1, 2]


def test_only_the_item_of_a_killed_process_is_lost() -> None:
    reached, hold = os.pipe(), os.pipe()

    def work(item: str) -> str:
        if item == "waits":
            os.write(reached[1], b".")
            os.read(hold[0], 1)
        elif item == "kills":
            os.read(reached[0], 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    async def steps(processes: Processes[Any, Any]) -> None:
        waiting = asyncio.create_task(processes.apply("waits"))
        with pytest.raises(WorkerKilledError):
            await processes.apply("kills")
        assert await processes.apply("another") == "another"
        os.write(hold[1], b".")
        assert await waiting == "waits"

    with_processes(work, steps)


def test_processes_that_were_killed_while_they_were_idle_lose_nothing() -> None:
    before = children()

    async def steps(processes: Processes[Any, Any]) -> list[int]:
        for number in children() - before:
            os.kill(number, signal.SIGKILL)
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
        return await asyncio.gather(processes.apply("1"), processes.apply("2"))

    assert with_processes(int, steps) == [1, 2]


def test_retired_processes_finish_their_work_and_end() -> None:
    before = children()
    hold = os.pipe()

    async def steps(processes: Processes[Any, Any]) -> None:
        waiting = asyncio.create_task(processes.apply(hold[0]))
        await asyncio.sleep(0)
        processes.retire()
        os.write(hold[1], b"x")
        assert await waiting == b"x"
        while children() - before:
            await asyncio.sleep(0.01)

    with_processes(lambda file: os.read(file, 1), steps)


def test_a_process_whose_work_is_cancelled_is_replaced() -> None:
    async def steps(processes: Processes[Any, Any]) -> list[Any]:
        before = children()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(processes.apply(60), 0.1)
        assert before - children()
        return [await processes.apply(0) for _ in range(2)]

    assert with_processes(time.sleep, steps) == [None, None]


def test_nothing_holds_on_to_retired_processes_and_their_files() -> None:
    async def steps(processes: Processes[Any, Any]) -> None:
        others = Processes(int, 2)
        assert await others.apply("1") == 1
        held = [weakref.ref(process) for process in others._all]
        others.retire()
        del others
        while any(process() for process in held):  # else the steps take too long
            await asyncio.sleep(0.01)
            gc.collect()

    with_processes(int, steps)


def test_a_connection_ends_although_processes_were_started_while_it_was_open() -> None:
    client, server = socket.socketpair()

    async def steps(processes: Processes[Any, Any]) -> None:
        assert await processes.apply("1") == 1
        server.close()
        client.settimeout(60)
        assert client.recv(1) == b""

    with_processes(int, steps)
    client.close()

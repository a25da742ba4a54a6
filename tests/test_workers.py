"""Work that is shared out to processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.synchronize import SemLock
from unittest import mock

import pytest
import torch

from nmt.errors import NmtError, explain
from nmt.inference.fast.workers import Workers
from nmt.runtime.processes import available_cores


def test_results_come_in_order_from_other_processes_of_one_thread() -> None:
    workers = Workers(lambda it: (2 * it, os.getpid(), torch.get_num_threads()), 2)
    doubles, processes, threads = zip(*workers.map(range(9)), strict=True)
    assert doubles == tuple(range(0, 18, 2))
    assert os.getpid() not in processes
    assert set(threads) == {1}


def test_what_comes_alone_or_to_one_worker_is_done_here() -> None:
    for count, things in ((1, [1, 2, 3]), (4, [1])):
        assert set(Workers(lambda it: os.getpid(), count).map(things)) == {os.getpid()}


def test_an_error_in_a_worker_is_raised_here() -> None:
    def fail(it: int) -> None:
        raise NmtError(f"not {it}")

    with pytest.raises(NmtError, match="not 1"):
        list(Workers(fail, 2).map([1, 2]))


def test_a_worker_that_is_killed_is_an_error() -> None:
    def die(it: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(NmtError) as error:
        list(Workers(die, 2).map([1, 2]))
    assert str(error.value) == (
        "a worker was killed, perhaps for lack of memory; lower workers (--workers) or "
        "batch_tokens (--batch-tokens)"
    )


def test_workers_end_when_the_process_that_they_work_for_is_killed() -> None:
    script = (
        "import os, signal, time; from nmt.inference.fast.workers import Workers; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may have it ignored
        "work = lambda it: (os.write(1, b'.'), time.sleep(300)); "
        "list(Workers(work, 2).map([1, 2]))"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            begun = process.stdout.read(2)
        finally:
            process.kill()
        # A worker that lived on would hold stdout open.
        assert (begun, process.communicate(timeout=120)[0]) == (b"..", b"")


def test_workers_whose_results_are_not_taken_end_at_once_and_others_come() -> None:
    workers = Workers(lambda it: os.getpid() if it else time.sleep(300), 2)
    results = workers.map([1, 0, 1, 0])
    first = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert first not in set(workers.map([1, 2, 3]))


def test_workers_end_while_they_send_a_result() -> None:
    script = (
        "from nmt.inference.fast.workers import Workers; "
        "results = Workers(lambda it: bytes(1 << 27), 2).map(range(4)); "
        "next(results); results.close()"
    )
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_an_interruption_does_not_wait_for_workers() -> None:
    script = (
        "import os, signal, time; from nmt.inference.fast.workers import Workers; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may have it ignored
        "work = lambda it: (os.write(1, b'.'), time.sleep(300)); "
        "list(Workers(work, 2).map(range(9)))"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(2) == b".."
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=120)[1]
        finally:
            process.kill()
    assert err.endswith(b"\nKeyboardInterrupt\n")
    assert err.count(b"Traceback") == 1


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EROFS, "/dev/shm, which processes share, cannot be used: Read-only file system; "),
        (errno.ENOSPC, "/dev/shm, which processes share, cannot be used: No space left on device"),
    ],
)
def test_shared_memory_that_cannot_be_used_is_named(number: int, message: str) -> None:
    refusal = OSError(number, os.strerror(number))
    with (
        mock.patch.object(SemLock, "__init__", side_effect=refusal),
        pytest.raises(NmtError, match=f"^{message}.*use a single worker .--workers 1.$"),
    ):
        list(Workers(abs, 2).map([1, 2]))


def test_a_limit_of_open_files_is_not_taken_for_shared_memory() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as error:
            list(Workers(abs, 2).map([1, 2]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert explain(error.value).endswith("; raise the limit of open files (ulimit -n)")


def test_processes_of_torchrun_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = available_cores()
    assert alone >= 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2 * alone))
    assert available_cores() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "0")
    with pytest.raises(NmtError, match="LOCAL_WORLD_SIZE is '0', not a whole number of at least 1"):
        available_cores()


def test_a_connection_ends_although_workers_were_started_while_it_was_open():
    client, server = socket.socketpair()
    workers = Workers(abs, 2)
    assert list(workers.map([-1, -2])) == [1, 2]
    server.close()
    client.settimeout(60)
    assert client.recv(1) == b""
    client.close()

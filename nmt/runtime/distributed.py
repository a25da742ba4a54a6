"""The processes of a distributed run, from torchrun's environment variables.

All operations do nothing at size 1, so no other module asks how many processes there are.
"""

from __future__ import annotations

import gc
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from nmt.errors import LostPeerError, NmtError
from nmt.lazy import dist, torch
from nmt.runtime.machine import keep_freed_memory
from nmt.runtime.processes import environment_number

if TYPE_CHECKING:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

T = TypeVar("T")

ROLL_CALL_SECONDS = 5.0
"""Seconds in which processes must answer after a failed collective operation."""

SLACK_SECONDS = 2.0
"""Seconds by which an operation may exceed its timeout."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among `size` processes, and its device."""

    rank: int = 0
    size: int = 1
    place: str = "cpu"
    """This process's device: cpu or cuda:N."""
    control: dist.ProcessGroup | None = None
    """Process group for small values on CPUs, so no GPU is waited for; None for the default
    group."""

    @cached_property
    def device(self) -> torch.device:
        """This process's device, for torch."""
        return torch.device(self.place)

    @property
    def is_main(self) -> bool:
        """Return whether this is the process (rank 0) that writes files and prints messages."""
        return self.rank == 0

    def device_kinds(self) -> list[str]:
        """Return the distinct devices of all processes: a GPU by name and memory."""
        kind = self.device.type
        if kind == "cuda":
            gpu = torch.cuda.get_device_properties(self.device)
            kind = f"{gpu.name}, {gpu.total_memory} bytes"
        return sorted({*self.gather(kind)})

    def sum(self, values: list[float]) -> list[float]:
        """Return the element-wise sums over all processes, in float64."""
        return self._reduce(values, "SUM")

    def max(self, values: list[float]) -> list[float]:
        """Return the element-wise maxima over all processes, in float64."""
        return self._reduce(values, "MAX")

    def _reduce(self, values: list[float], operation: str) -> list[float]:
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        # On CPUs, also for GPUs: NCCL would wait for all kernels that are queued.
        dist.all_reduce(total, getattr(dist.ReduceOp, operation), group=self.control)
        return [float(value) for value in total.tolist()]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in rank order, on every process."""
        if self.size == 1:
            return [value]
        gathered: list[T | None] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self.control)
        return gathered  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until every process has called this."""
        if self.size > 1:
            dist.barrier(group=self.control)


@contextmanager
def join(device: str = "auto", timeout_minutes: float = 10.0) -> Iterator[World]:
    """Join the other processes, and yield the world of this process.

    Args:
        device: "cpu", "cuda", "cuda:1", or "auto": this process's GPU where there is one.
        timeout_minutes: how long a collective operation may wait for a missing process.

    Raises:
        NmtError: the device does not exist, MASTER_ADDR and MASTER_PORT are not set, or a variable
            of the environment is not a number.
        LostPeerError: a process did not join, or a collective operation failed; the message names
            the missing ranks.
    """
    size, rank = environment_number("WORLD_SIZE", 1, least=1), environment_number("RANK", 0)
    place = pick_device(device, environment_number("LOCAL_RANK", 0))
    if place != "cpu":
        torch.cuda.set_device(place)
    else:
        keep_freed_memory()
    if rank >= size:
        raise NmtError(
            f"RANK is {rank} and WORLD_SIZE {size}, whose ranks are 0 to {size - 1}; unset both, "
            "or start the processes with torchrun"
        )
    if size == 1:
        yield World(place=place)
        return
    if place != "cpu" and device not in ("auto", "cuda"):
        raise NmtError(f"--device {device}: {size} processes cannot share it; use cuda or auto")
    # The store is opened here and not by torch, to find missing processes when a collective
    # fails.
    peers = _Peers(rank, size, timedelta(minutes=timeout_minutes))
    try:
        control = _within(60 * timeout_minutes + SLACK_SECONDS, lambda: peers.connect(place))
    except (FutureTimeoutError, RuntimeError) as error:
        cause = str(error).partition("\n")[0] or "timeout"
        raise LostPeerError(f"rank {rank}: {peers.missing()} ({cause})") from error
    try:
        yield World(rank=rank, size=size, place=place, control=control)
    except RuntimeError as error:
        # gloo reports a lost peer as a plain RuntimeError.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise LostPeerError(f"rank {rank}: {peers.missing()}") from error
    # Not after an exception: the peers may wait in a collective, and destroying would wait, too.
    dist.destroy_process_group()
    gc.collect()  # threads of a group that outlive the interpreter can abort the process


class _Peers:
    """The other processes, and the store that records which processes are present."""

    def __init__(self, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.host: TCPStore | None = None
        """The store as its host keeps it, maybe with keys of processes before a restart."""
        self.store: PrefixStore | None = None
        """The keys of the processes of this start."""
        # Otherwise torchrun's agent hosts the store.
        self.hosts_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            self.address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            if not 0 < self.address[1] < 1 << 16:
                raise ValueError(f"no port: {self.address[1]}")
        except (KeyError, ValueError):
            raise NmtError(
                f"WORLD_SIZE is {size}, but MASTER_ADDR and MASTER_PORT are not the address and a "
                "free port of the machine of rank 0; set them, or start the processes with torchrun"
            ) from None

    def connect(self, place: str) -> dist.ProcessGroup | None:
        """Initialize the default group; return the control group, or None if they are the same."""
        on_gpu = place != "cpu"
        if on_gpu:
            torch.cuda.set_device(place)  # each thread has a current device of its own
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            # NCCL's watchdog kills a process without naming the missing rank: time out later.
            timeout=self.timeout + timedelta(minutes=1) if on_gpu else self.timeout,
            store=self._open_store(),
            rank=self.rank,
            world_size=self.size,
            device_id=torch.device(place) if on_gpu else None,
        )
        return dist.new_group(backend="gloo", timeout=self.timeout) if on_gpu else None

    def _open_store(self) -> PrefixStore:
        """Open the store, which rank 0, or torchrun on the machine of rank 0, hosts.

        torchrun keeps its store when it starts failed processes again, and counts restarts on each
        machine by itself. So rank 0 draws a name for the keys, and answers a greeting, which is new
        after each start, with the name.
        """
        self.host = dist.TCPStore(  # type: ignore[attr-defined]
            *self.address,
            is_master=self.hosts_store,
            timeout=self.timeout,
            wait_for_workers=False,  # the groups wait; the store tells which processes are missing
        )
        # torchrun keeps its store when it restarts processes, so each start has its own keys.
        name = secrets.token_hex(8)
        if self.rank > 0:
            greeting = secrets.token_hex(8)
            self.host.set(f"greeting/{self.rank}", greeting)
            name = self.host.get(f"answer/{greeting}").decode()
        self.store = dist.PrefixStore(name, self.host)  # type: ignore[attr-defined]
        self.store.set(f"joined/{self.rank}", "")
        if self.rank == 0:
            self._answer_greetings(name)
        return self.store

    def _answer_greetings(self, name: str) -> None:
        """Answer every greeting, even from before a restart, until all processes have joined."""
        assert self.host is not None
        while late := self._without("joined"):
            for rank in late:
                if self.host.check([f"greeting/{rank}"]):
                    greeting = self.host.get(f"greeting/{rank}").decode()
                    self.host.set(f"answer/{greeting}", name)
            time.sleep(0.05)

    def missing(self) -> str:
        """Return a message that names the missing ranks, after a failed collective operation."""
        try:
            # A cut link leaves a request without an answer, so the roll call has a deadline of its
            # own.
            return _within(ROLL_CALL_SECONDS + SLACK_SECONDS, self._call_the_roll)
        except (FutureTimeoutError, RuntimeError):
            host, port = self.address
            return (
                f"rank 0 failed or cannot be reached: its store at {host}:{port} does not answer; "
                "see its messages"
            )

    def _call_the_roll(self) -> str:
        if self.host is None:
            raise RuntimeError("the store was never reached")
        late = [0] if self.store is None else self._without("joined")
        if self.store is None or late:
            return f"rank {_listed(late)} did not start, or cannot be reached; see its messages"
        self.store.set(f"present/{self.rank}", "")
        # The store ends with its host, so the host stays until all processes have read the store.
        deadline = time.monotonic() + ROLL_CALL_SECONDS + self.hosts_store
        missing = self._without("present")
        while (missing or self.hosts_store) and time.monotonic() < deadline:
            time.sleep(0.1)
            missing = self._without("present")
        minutes = f"{self.timeout.total_seconds() / 60:g}"
        if not missing:
            return (
                "a collective operation failed in all processes: the network failed, or a process "
                f"was busy for more than {minutes} minutes, such as with a slow metric of "
                "validation; raise train.timeout_minutes"
            )
        return (
            f"rank {_listed(missing)} failed, cannot be reached, or did not answer for {minutes} "
            "minutes; see its messages"
        )

    def _without(self, mark: str) -> list[int]:
        """Return the ranks without the key MARK/RANK in the store."""
        assert self.store is not None
        return [rank for rank in range(self.size) if not self.store.check([f"{mark}/{rank}"])]


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, raise its exception, or raise a timeout after `seconds`.

    The call runs in a thread, which is abandoned on a timeout: if the network drops packets, a
    request to a store blocks for ever.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # Otherwise it would be lost in the thread, and the caller would wait until the timeout.
            future.set_exception(error)

    # The thread may hang in torch for ever; the caller continues without it.
    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def pick_device(name: str, local_rank: int = 0) -> str:
    """Return the device of a name: cpu, or cuda:N.

    Args:
        name: "cpu", "cuda", "cuda:N", or "auto": the local rank's GPU if there is one, else the
            CPU.
        local_rank: rank of this process on its machine.

    Raises:
        NmtError: the name is unknown, or the GPU does not exist.
    """
    # Where no driver is, torch is not asked: a translation on a CPU may do without torch.
    if name == "cpu" or (name == "auto" and not (may_have_gpu() and torch.cuda.is_available())):
        return "cpu"
    kind, _, index = name.partition(":")
    if name not in ("auto", "cuda") and not (kind == "cuda" and index.isdecimal()):
        raise NmtError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto")
    number = int(index or local_rank)
    if number >= (count := torch.cuda.device_count()):
        raise NmtError(
            f"device 'cuda:{number}' does not exist: {count} GPUs found; use auto, or cpu"
        )
    return f"cuda:{number}"


GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Devices of GPU drivers on Linux: NVIDIA's, the driver of Windows under WSL, and AMD's."""


def may_have_gpu() -> bool:
    """Return False if this machine has no driver of a GPU that torch could use."""
    if sys.platform == "linux":
        return any(map(os.path.exists, GPU_DRIVERS))
    return sys.platform != "darwin"

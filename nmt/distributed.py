"""Where this process stands among its peers, from torchrun's environment.

Everything here is a no-op at size 1, so that no other module asks whether it runs alone.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from nmt.errors import NmtError
from nmt.memory import keep_freed_memory

T = TypeVar("T")

ROLL_CALL_SECONDS = 5.0
"""For processes to answer after a collective operation failed."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One process among `size`, and the device it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: dist.ProcessGroup | None = None
    """For small values: between CPUs, so that no GPU is waited for. None for the default group."""

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and talks."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """The element-wise sums over all processes, in float64."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: list[float]) -> list[float]:
        """The element-wise maxima over all processes, in float64."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, operation, group=self.control)
        return [float(value) for value in total.tolist()]

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in rank order, on every process."""
        if self.size == 1:
            return [value]
        gathered: list[T | None] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self.control)
        return gathered  # type: ignore[return-value]

    def barrier(self) -> None:
        """Returns when every process has come here."""
        if self.size > 1:
            dist.barrier(group=self.control)


@contextmanager
def join(device: str = "auto", timeout_minutes: float = 10.0) -> Iterator[World]:
    """The world of this process, for the time of the context.

    Args:
        device: "cpu", "cuda", "cuda:1", or "auto": this process's GPU where there is one.
        timeout_minutes: how long a collective operation may wait for a missing process.

    Raises:
        NmtError: the device does not exist, or a collective operation failed; it names the ranks
            that are missing.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    place = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    else:
        keep_freed_memory()
    if size == 1:
        yield World(device=place)
        return
    if place.type == "cuda" and device not in ("auto", "cuda"):
        raise NmtError(f"--device {device}: {size} processes cannot share it; use cuda or auto")
    timeout = timedelta(minutes=timeout_minutes)
    on_gpu = place.type == "cuda"
    [(store, _, _)] = itertools.islice(rendezvous("env://", rank, size, timeout=timeout), 1)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        # NCCL's watchdog ends a process without saying who is missing: the control group first.
        timeout=timeout + timedelta(minutes=1) if on_gpu else timeout,
        store=store,
        rank=rank,
        world_size=size,
        device_id=place if on_gpu else None,
    )
    control = dist.new_group(backend="gloo", timeout=timeout) if on_gpu else None
    try:
        yield World(rank=rank, size=size, device=place, control=control)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise NmtError(f"rank {rank}: {_who_is_missing(store, rank, size)}") from error
    # Not after an exception: the peers may wait in a collective, and this would wait for them.
    dist.destroy_process_group()
    gc.collect()  # the threads of a group that outlives the interpreter can abort the process


def _who_is_missing(store: Store, rank: int, size: int) -> str:
    """Which processes do not answer, after a collective operation failed in this one."""
    missing = set(range(size)) - {rank}
    deadline = time.monotonic() + ROLL_CALL_SECONDS
    try:
        store.set(f"present/{rank}", "")
        while missing and time.monotonic() < deadline:
            missing = {peer for peer in missing if not store.check([f"present/{peer}"])}
            time.sleep(0.1)
    except RuntimeError:
        missing = {0}  # who keeps the store
    if not missing:
        return "a collective operation failed in all processes, as if the network were down"
    who = ", ".join(map(str, sorted(missing)))
    return f"rank {who} failed, or did not come to a collective operation in time; see its messages"


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of that name; "auto" is the local rank's GPU, or else the CPU."""
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    elif name == "cuda":
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise NmtError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto") from None
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise NmtError(f"device {name!r} is not there: {torch.cuda.device_count()} GPUs found")
    return device

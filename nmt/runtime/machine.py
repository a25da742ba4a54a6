"""The machine: memory settings of glibc and oneDNN, out-of-memory errors, and limits of cgroups.

The operating system reports all cores and all memory of the machine. A process that uses more than
its control group may have is slowed down, or killed. Source: the kernel's documentation,
admin-guide/cgroup-v2 and admin-guide/cgroup-v1.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_REPORTS = re.compile(
    r"can't allocate memory|could not create a (primitive|memory)$|std::bad_alloc|"
    r"failed to map segment|can't start new thread|Resource temporarily unavailable|"
    r"without (setting an )?exception"
)
"""Out-of-memory messages of torch's allocator, oneDNN, C++, the dynamic loader and Python."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of any library means that memory is used up."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError | ImportError | SystemError):
        # Compare the name of torch's GPU error, because not every command imports torch.
        return type(error).__name__ == "OutOfMemoryError" or bool(_REPORTS.search(str(error)))
    return isinstance(error, MemoryError)


def host_memory() -> int:
    """Return the bytes of memory that this process may have: the machine's, or its limit."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = address_space == resource.RLIM_INFINITY
    # The smallest of three limits: of the machine, of the shell and of the container.
    limits = pages, None if unlimited else address_space, memory_limit()
    return min(limit for limit in limits if limit is not None)


def keep_freed_memory() -> None:
    """Let the process keep freed memory for reuse instead of returning it to the kernel.

    By default glibc returns every freed tensor above 32 MiB to the kernel, and often smaller
    tensors at the heap's end. The next tensor then costs a page fault for every 4 KiB: a third of
    the time of training on two cores. Does nothing with another C library.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Each large tensor would be mapped anew and cleared by the kernel; keeping memory made fp32
        # training 1.41 times as fast on a CPU.
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def keep_few_kernels() -> None:
    """Let oneDNN cache the kernels of the last 128 shapes instead of 1,024.

    Each batch of training or of a search has new shapes, whose kernels are seldom needed again.
    With the default they fill half a gigabyte. Call before the first matrix product of the process.
    """
    # Kernels of 1,024 shapes take 0.5 GB more, at the same speed.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")


ROOT = Path("/sys/fs/cgroup")
"""Where every distribution and container mounts the groups."""

GROUPS = Path("/proc/self/cgroup")
"""The groups of this process: lines `number:controllers:path`; without controllers in version 2."""


def core_limit() -> float | None:
    """Return how many cores the groups of this process may use at a time, or None for all."""
    limits = []
    for group in _groups("cpu"):
        # A container may use fewer cores than the machine shows; more threads would only wait.
        match _words(group, "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
            case [quota, period] if quota.isdecimal():  # not max or, in version 1, -1
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit() -> int | None:
    """Return the bytes of memory that the groups of this process may take, or None for all.

    In version 1, a group without a limit reports a limit near 2^63.
    """
    limits = [
        int(limit)
        for group in _groups("memory")
        for limit in _words(group, "memory.max", "memory.limit_in_bytes")
        if limit.isdecimal()
    ]
    return min(limits, default=None)


def keep_threads_within_limit() -> None:
    """Let torch start no more threads than the groups may use cores; call before its import.

    By default torch starts one thread per core of the machine, and threads beyond the limit slow
    down all threads. `OMP_NUM_THREADS` has precedence, if it is set.
    """
    limit = core_limit()
    if limit is not None and limit < len(os.sched_getaffinity(0)):
        os.environ.setdefault("OMP_NUM_THREADS", str(math.ceil(limit)))


def let_waiting_threads_sleep() -> None:
    """Let a thread that waits for torch's other threads sleep soon; call before torch's import.

    By default it spins for milliseconds first. On a busy machine it thus keeps the core that the
    thread needs for which it waits. `OMP_WAIT_POLICY` has precedence, if it is set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _groups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's groups and their parent groups, of both versions.

    A container may see the path that its group has on the host, with its own group as the root.
    """
    text = ""
    with suppress(OSError):  # the system has no groups, or hides them
        text = os.fsdecode(GROUPS.read_bytes())
    for _, controllers, path in (line.split(":", 2) for line in text.split("\n") if line):
        if controllers and controller not in controllers.split(","):
            continue
        root = ROOT / controller if controllers else ROOT
        group = root / path.lstrip("/")
        # The tightest limit of this group and its parent groups holds.
        yield from (parent for parent in (group, *group.parents) if parent.is_relative_to(root))


def _words(group: Path, *names: str) -> list[str]:
    """Return the words of the readable files of a group, one file after the other."""
    words = []
    for name in names:
        with suppress(OSError):
            words += (group / name).read_text("ascii").split()
    return words

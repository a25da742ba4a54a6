"""What torch's libraries keep in memory on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Lets the process keep memory that is freed, to be used again without asking the kernel.

    By default glibc gives every freed tensor above 32 MiB back to the kernel, and often smaller
    ones at the heap's end; the next one then costs a page fault for every 4 KiB, which is a third
    of the time of training on two cores. Does nothing where the C library is another.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def keep_few_kernels() -> None:
    """Lets oneDNN keep the kernels of the last 128 shapes instead of 1,024.

    Every batch of training has other shapes, whose kernels serve its layers and are not needed
    again; by default they fill half a gigabyte. Only before the first product of the process.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

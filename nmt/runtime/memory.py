"""What torch's libraries keep in memory on a CPU, and what they say when memory is used up."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys

_REPORTS = re.compile(
    r"can't allocate memory|could not create a (primitive|memory)$|std::bad_alloc|"
    r"failed to map segment|can't start new thread|Resource temporarily unavailable|"
    r"without (setting an )?exception"
)
"""Messages about memory of torch's allocator, oneDNN, C++, the loader of libraries, and Python."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error, of whichever library, says that memory is used up."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError | ImportError | SystemError):
        # The name is that of torch's error on a GPU: not every command imports torch.
        return type(error).__name__ == "OutOfMemoryError" or bool(_REPORTS.search(str(error)))
    return isinstance(error, MemoryError)


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

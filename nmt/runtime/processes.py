"""Worker processes: their number, errors at their start, their sockets, and their end."""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nmt.errors import NmtError
from nmt.runtime.machine import core_limit


def available_cores() -> int:
    """Return the number of cores of this process: an equal share per process of torchrun."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if (limit := core_limit()) is not None:
        cores = min(cores, math.ceil(limit))
    # Processes of one machine share its cores.
    return max(1, cores // environment_number("LOCAL_WORLD_SIZE", 1, least=1))


def environment_number(name: str, default: int, least: int = 0) -> int:
    """Return the number in an environment variable of torchrun, or `default` without the variable.

    Raises:
        NmtError: the variable is not a whole number, or less than `least`.
    """
    text = os.environ.get(name, str(default))
    with suppress(ValueError):
        if (number := int(text)) >= least:
            return number
    raise NmtError(
        f"the environment variable {name} is {text!r}, not a whole number of at least "
        f"{least}; unset it, or start the processes with torchrun, which sets it"
    )


@contextmanager
def starting_workers() -> Iterator[None]:
    """Turn a failure to create a process pool into an NmtError with the remedy.

    A pool needs semaphores in shared memory. A lack of memory or file descriptors keeps its own
    error.

    Raises:
        NmtError: /dev/shm cannot be used.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise NmtError(
            f"/dev/shm, which processes share, cannot be used: {error.strerror}; make it writable "
            "and make room there, or use a single worker (--workers 1)"
        ) from None


def end_with_parent() -> None:
    """End this worker process as soon as its parent process ends.

    Otherwise a worker of a killed parent waits for ever, and keeps inherited files such as stdout
    open.
    """
    # Imported here, because most processes are no workers.
    import multiprocessing

    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        # At once: clean-up of a worker may wait for a parent that is gone.
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def leave_sockets(*kept: int) -> None:
    """Close the main process's sockets: a connection ends when all processes have closed it.

    Standard error, which may be a socket of systemd's journal, and the descriptors `kept` stay
    open.
    """
    numbers = [int(name) for name in os.listdir("/dev/fd")]
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        # A number that is free could become another file, which a socket's object would close.
        with suppress(OSError):  # the descriptor of the listing
            if number > 2 and number not in kept and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(null, number)
    os.close(null)

"""How many processes may work, and that they end with the one that they work for."""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nmt.errors import NmtError


def available_cores() -> int:
    """The cores that this process may use, a fair share where torchrun started several."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def starting_workers() -> Iterator[None]:
    """Explain why a pool of processes cannot be made: it needs semaphores in shared memory."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise NmtError(
            f"/dev/shm, which processes share, cannot be used: {error.strerror}; make it writable "
            "and make room there, or use --workers 1"
        ) from None


def end_with_parent() -> None:
    """Ends this worker when the process that started it is killed: nobody else would.

    Without it a worker waits for ever, and holds what it has of its parent, such as stdout.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

"""How many processes may work, and that they end with the one that they work for."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading


def available_cores() -> int:
    """The cores that this process may use, a fair share where torchrun started several."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


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

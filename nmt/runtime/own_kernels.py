"""Test whether a GPU can run this project's kernels, which are written in Triton.

Triton comes with torch for CUDA. It needs a C compiler and Python's headers.
"""

from __future__ import annotations

from collections.abc import Collection

from nmt.messages import one_line, warn

_works: bool | None = None
"""Whether Triton can compile and run kernels; None before the first try."""

OPTIONAL = ("add_norm", "feed_forward")
"""Kernels that training uses if a trial finds them right and faster; see
:mod:`nmt.training.kernel_trial`."""

_chosen: set[str] = set()


def choose_kernels(names: Collection[str]) -> None:
    """Use these of the optional kernels from now on."""
    _chosen.clear()
    _chosen.update(names)


def is_chosen(name: str) -> bool:
    """Return whether an optional kernel is used."""
    return name in _chosen


def has_own_kernels() -> bool:
    """Return whether Triton can compile and run kernels on the current GPU; warn once if not.

    torch cannot compile the first call, but it can compile later calls.
    """
    global _works
    if _works is None:
        _works = _try_kernel()
    return _works


def _try_kernel() -> bool:
    try:
        from nmt.runtime.trial_kernel import try_triton

        # A trial: versions do not tell whether a compiler, headers and driver fit.
        try_triton()
    except Exception as error:  # whatever Triton, its compiler and its driver raise
        reason = str(error).strip().partition("\n")[0]
        warn(
            "attention and loss use slower kernels, because Triton, which needs a C compiler and "
            f"Python's headers, does not work here: {one_line(reason)}"
        )
        return False
    return True

"""Test of a GPU for kernels of our own, which are written in Triton.

Triton comes with torch for CUDA. It needs a C compiler and Python's headers.
"""

from __future__ import annotations

from nmt.messages import one_line, warn

_works: bool | None = None
"""Whether Triton can compile and run kernels; None before the first try."""


def has_own_kernels() -> bool:
    """Return whether Triton can compile and run kernels on the current GPU; warn once if not.

    The first call cannot be compiled by torch, later ones can.
    """
    global _works
    if _works is None:
        _works = _try_kernel()
    return _works


def _try_kernel() -> bool:
    try:
        from nmt.runtime.trial_kernel import try_triton

        # Tried out: whether a compiler, headers and driver fit cannot be read from versions.
        try_triton()
    except Exception as error:  # whatever Triton, its compiler and its driver raise
        reason = str(error).strip().partition("\n")[0]
        warn(
            "attention and loss take slower kernels, because Triton, which needs a C compiler and "
            f"Python's headers, does not work here: {one_line(reason)}"
        )
        return False
    return True

"""The settings of how a model is run: device, precision, processes, shortlist and compiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from nmt.errors import NmtError
from nmt.recipe.registry import unknown
from nmt.runtime.precision import InferencePrecision


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings for running a model; :class:`SearchConfig` holds the settings of the search.

    Raises:
        NmtError: the precision is unknown, or there are fewer than 1 workers or threads, several
            workers on a GPU, or several workers of several threads.
    """

    device: str = "cpu"
    """Device that computes: cpu, cuda, or cuda:N."""

    precision: InferencePrecision = "fp32"
    """Precision of the computation: auto, fp32, bf16, fp16 or, with CTranslate2, int8. Scores are
    always summed in float32."""

    workers: int = 1
    """Processes of one thread each (with CTranslate2, parallel decoders) that share the batches, on
    a CPU."""

    threads: int | None = None
    """Threads that compute each batch, with a single worker; None leaves the number as it is (with
    CTranslate2, one per core)."""

    shortlist: bool = False
    """Whether to search only among the tokens of the first run's shortlist."""

    compile: bool = False
    """Whether to compile a step of the search, on a GPU; see
    :func:`nmt.inference.ensembles.compile_steps`."""

    cuda_graphs: bool = False
    """Whether to launch each step of greedy and beam search as one CUDA graph; see
    :mod:`nmt.inference.fast.recorded_search`."""

    def __post_init__(self) -> None:
        if self.precision not in (known := get_args(InferencePrecision)):
            raise NmtError(unknown("precision", str(self.precision), known))
        if self.workers < 1:
            raise NmtError(f"workers {self.workers}: must be at least 1")
        if self.workers > 1 and self.kind != "cpu":
            raise NmtError(f"workers {self.workers}: several processes on one GPU; use torchrun")
        if self.threads is not None and self.threads < 1:
            raise NmtError(f"threads {self.threads}: must be at least 1")
        if self.workers > 1 and (self.threads or 1) > 1:
            raise NmtError(
                f"workers {self.workers}, threads {self.threads}: each of several workers has one "
                "thread; set either workers or threads"
            )

    @property
    def kind(self) -> str:
        """Kind of the device: cpu or cuda."""
        return self.device.partition(":")[0]


ON_CPU = Execution()
"""One process on a CPU, in float32."""


def use_engine(name: str) -> str:
    """Return the advice to use another engine, worded for the command line and for Python."""
    return f"use --engine {name} (in Python engine={name!r})"

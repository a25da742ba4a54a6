"""A trial of the optional kernels: a GPU uses those that are right and faster there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.data.batches import Batch
from nmt.messages import warn
from nmt.runtime.own_kernels import OPTIONAL, choose_kernels
from nmt.training.preflight import time_ordinary_batches
from nmt.training.trainer import Trainer

MAX_ERROR = 0.05
"""Largest relative error of all gradients; rounding to bf16 makes up to a fifth of this."""


def choose_own_kernels(trainer: Trainer) -> list[str]:
    """Let a trainer use the optional kernels that are right and faster; return their names.

    Each kernel is tried together with those before it that were chosen. All processes choose alike.
    """
    batch = trainer.loader.update(1).batches[0].to(trainer.world.device)
    chosen: list[str] = []
    expected = _gradients(trainer, batch, chosen)
    usual = _seconds(trainer, chosen)
    for name in OPTIONAL:
        names = [*chosen, name]
        try:
            error = _error(_gradients(trainer, batch, names), expected)
            seconds = _seconds(trainer, names)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as reason:  # whatever Triton, its compiler and its driver raise
            warn(f"kernel {name} is not used: {str(reason).partition(chr(10))[0]}")
            error = seconds = float("inf")
        error, seconds = trainer.world.max([error, seconds])
        if error <= MAX_ERROR and seconds < usual:
            chosen, usual = names, seconds
    trainer.set_own_kernels(chosen)
    return chosen


def _seconds(trainer: Trainer, names: Sequence[str]) -> float:
    """Return the seconds per token of ordinary batches with some kernels, on the slowest GPU."""
    choose_kernels(names)
    time_ordinary_batches(trainer)  # compiles kernels
    return trainer.world.max([time_ordinary_batches(trainer)])[0]


def _gradients(trainer: Trainer, batch: Batch, names: Sequence[str]) -> list[Tensor]:
    """Return the gradients of a batch without dropout, which kernels draw in ways of their own."""
    choose_kernels(names)
    trainer.model.eval()
    try:
        return trainer.gradients(batch)
    finally:
        trainer.model.train()


def _error(gradients: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the error of all gradients, relative to their norm; infinite if it is not a number."""
    pairs = list(zip(gradients, expected, strict=True))
    difference = torch.stack([(a - b).float().norm() for a, b in pairs]).norm()
    error = float(difference / torch.stack([b.float().norm() for _, b in pairs]).norm())
    return error if error == error else float("inf")

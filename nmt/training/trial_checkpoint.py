"""A checkpoint that is written and read before training, and the disk space of those to come."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from nmt.errors import NmtError
from nmt.io import files
from nmt.runs import Checkpoint
from nmt.training.parallel import gather_tensors
from nmt.training.trainer import Trainer


def try_checkpoint(trainer: Trainer) -> int:
    """Write and read a checkpoint, and return the bytes of all checkpoints to be kept.

    Raises:
        NmtError: the checkpoint reads back with other weights, or the disk has too little space.
    """
    weights = gather_tensors(trainer.parallel, trainer.stored_weights(), trainer.world.is_main)
    if not trainer.world.is_main:
        return 0
    run, config = trainer.run, trainer.config
    beginning = ".preflight.partial-"
    with (
        files.named(run.path, run.path / beginning),
        TemporaryDirectory(prefix=beginning, dir=run.path) as scratch,
    ):
        path = Path(scratch)
        trial = replace(run, path=path)
        saved = trial.save(0, weights, None, {}, {}, best=True)
        read = Checkpoint.open(saved.path).weights()
        if not all(torch.equal(weights[name].cpu(), value) for name, value in read.items()):
            raise NmtError(f"{run.path}: a checkpoint written there reads back with other weights")
        size: int = sum(file.bytes for file in saved.files.values())
    # Only the two newest checkpoints keep the optimizer's state.
    # One more checkpoint is written before the oldest is removed.
    needed = (config.keep_last + 2) * size + 3 * trainer.optimizer_bytes
    free = shutil.disk_usage(run.path).free
    if free < needed:
        raise NmtError(
            f"{run.path}: the checkpoints of --keep-last {config.keep_last} need "
            f"{needed / 1e6:,.1f} MB, but {free / 1e6:,.1f} MB are free; "
            "make room, or keep fewer"
        )
    return needed

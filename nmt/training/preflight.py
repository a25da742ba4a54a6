"""The preflight check: before the first update, try everything that could fail hours later.

The check trains on the longest batch, scores and translates the largest validation batches, writes
and reads a checkpoint, and measures free disk space. It takes seconds and changes no result:
gradients are dropped, and each update sets its own random seed.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from nmt.errors import NmtError
from nmt.messages import duration, warn
from nmt.training.micro_batches import fit_micro_batches
from nmt.training.report import peak_memory_mb
from nmt.training.schedule_warnings import misfit, unfinished_decay
from nmt.training.trainer import Trainer
from nmt.training.trial_batches import time_ordinary_batches, try_longest_batch
from nmt.training.trial_checkpoint import try_checkpoint
from nmt.training.validation_by_direction import Validations

Rows = list[tuple[str, str]]


def preflight(trainer: Trainer, validation: Validations) -> Rows:
    """Run the preflight check, and return estimates of the training as (name, value) pairs.

    Warns if a new training is likely to end before the model learns, or far from the end of its
    decay.

    Raises:
        NmtError: training or validation does not fit the device, the checkpoints do not fit the
            disk, or a checkpoint reads back with other weights.
    """
    if trainer.needs_trial:
        fit_micro_batches(trainer)
    else:
        trainer.allocate()
    try_longest_batch(trainer)
    seconds = time_ordinary_batches(trainer)
    try:
        with trainer.parallel.evaluating():
            validation.try_largest()
    except torch.cuda.OutOfMemoryError:
        limit = validation.translator.config.batch_limit(trainer.world.device.type)
        raise NmtError(
            "validation does not fit the memory of the device beside training; lower "
            f"search.batch_tokens from {limit}, or --max-tokens"
        ) from None
    kept = try_checkpoint(trainer)
    return _describe(trainer, seconds, kept)


def _describe(trainer: Trainer, seconds_per_token: float, kept: int) -> Rows:
    config, order, world = trainer.config, trainer.sampler, trainer.world
    first = trainer.loader.update(1)
    epoch = np.concatenate(order.epoch(1))
    tokens = int(order.source_lengths[epoch].sum() + order.target_lengths[epoch].sum())
    updates = trainer.last_update - trainer.state.update
    limit = math.inf
    if config.max_minutes is not None:
        limit = max(0, 60 * config.max_minutes - trainer.state.seconds)
    per_update = tokens / order.updates_per_epoch / world.size * seconds_per_token
    to_go = f"{updates:,}"
    if limit < updates * per_update:
        to_go += f", of which about {limit / per_update:,.0f} fit into max_minutes"
    if trainer.state.update == 0 and world.is_main:  # a resumed run may not change its schedule
        for warning in (
            misfit(config.schedule.warmup_updates, trainer.last_update, per_update, limit),
            unfinished_decay(config.schedule, trainer.last_update, per_update, limit),
        ):
            if warning:
                warn(warning)
    processes = "1 process" if world.size == 1 else f"{world.size} processes"
    batches = len(first.batches)
    shown = "1 micro-batch" if batches == 1 else f"{batches} micro-batches"
    made_up = f"{processes} x {shown} of up to {trainer.loader.max_tokens:,}"
    trained = f"{trainer.model.num_parameters():,}"
    every = f"{sum(weight.numel() for weight in trainer.model.parameters()):,}"
    memory = f"{peak_memory_mb(world.device):,.0f} MB"
    if world.device.type == "cpu":
        memory += " so far; with kernels for all shapes about twice that"
    return [
        ("parameters", trained if trained == every else f"{every}, of which {trained} are trained"),
        ("target tokens per update", f"{config.tokens_per_update:,} = {made_up} tokens"),
        ("longest pair", f"{order.source_lengths.max()} and {order.target_lengths.max()} tokens"),
        ("updates per epoch", f"{order.updates_per_epoch:,}"),
        ("updates to go", to_go),
        ("peak memory of a process", memory),
        ("disk for checkpoints", f"{kept / 1e6:,.0f} MB"),
        ("about", f"{duration(min(limit, updates * per_update))} of training"),
    ]

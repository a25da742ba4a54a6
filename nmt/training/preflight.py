"""The preflight check: before the first update, try everything that could fail hours later.

The check takes seconds and changes no result: gradients are dropped, and each update sets its own
random seed.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from nmt.data.batches import Batch, Link, make_batch
from nmt.data.dataset import Split
from nmt.errors import NmtError
from nmt.io import files
from nmt.messages import duration, warn
from nmt.runs import Checkpoint
from nmt.training.losses.sequence import SequenceLoss
from nmt.training.optim.schedules import Schedule
from nmt.training.parallel.processes import gather_tensors
from nmt.training.reporting.report import peak_memory_mb
from nmt.training.trainer import Trainer
from nmt.training.validation import Validations

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
        # The optimizer's state takes memory, too, so it exists before the longest batch.
        trainer.allocate()
    try_longest_batch(trainer)
    seconds = time_ordinary_batches(trainer)
    try:
        # As in validation, with whole weights: the largest moment of memory.
        with trainer.parallel.evaluating():
            validation.try_largest()
    except torch.cuda.OutOfMemoryError:
        limit = validation.translator.config.batch_limit(trainer.world.device.type)
        raise NmtError(
            "validation does not fit the device's memory together with training; lower "
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
    # Only a new run can still choose its schedule.
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


def longest_batch(split: Split, max_tokens: int, link: Link | None = None) -> Batch:
    """Return a batch of the longest pairs: at least one, at most `max_tokens` padded tokens."""
    longer = np.maximum(split.source_lengths, split.target_lengths)
    most = min(len(longer), max(1, max_tokens // int(longer.max())))
    # argpartition instead of a sort, in linear time.
    return make_batch(split, np.argpartition(longer, len(longer) - most)[-most:], link)


def try_longest_batch(trainer: Trainer) -> None:
    """Run the longest batch forward and backward; raise an NmtError if it does not fit."""
    loader, max_tokens = trainer.loader, trainer.loader.max_tokens
    batch = longest_batch(loader.split, max_tokens // loader.rows_per_sentence, loader.link)
    try:
        trainer.try_batch(batch)
    except torch.cuda.OutOfMemoryError:
        longest = f"{batch.packing.source.longest} and {batch.packing.target.longest} tokens"
        # A smaller micro-batch cannot help a single pair.
        if batch.num_sentences == 1:
            loss, samples = trainer.config.loss, ""
            if isinstance(loss, SequenceLoss):
                samples = f"lower train.loss.samples from {loss.samples}, or "
            raise NmtError(
                f"the longest pair, {longest}, does not fit the memory of the device; "
                f"{samples}preprocess with a lower "
                "preprocess.max_tokens_per_sentence, or train a smaller model"
            ) from None
        raise NmtError(
            f"the longest batch, {batch.num_sentences} pairs of up to {longest}, does not fit the "
            f"memory of the device; lower --max-tokens from {max_tokens}: the update stays the same"
        ) from None


ORDINARY = 8
"""Number of batches from which the time of training is estimated."""


def time_ordinary_batches(trainer: Trainer) -> float:
    """Return the seconds per token of the first batches, forward and backward.

    As in training, batches differ in shape, and a CPU makes kernels for each new shape.
    """
    updates = (trainer.loader.update(number).batches for number in count(1))
    # Read before the clock starts, so that the time of the loader does not count.
    batches = list(islice(chain.from_iterable(updates), ORDINARY))
    is_gpu = trainer.world.device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize()  # the longest batch may still run
    start = time.perf_counter()
    for batch in batches:
        trainer.try_batch(batch)
    if is_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / sum(batch.num_tokens for batch in batches)


def try_checkpoint(trainer: Trainer) -> int:
    """Write and read a checkpoint, and return the bytes of all checkpoints to be kept.

    Raises:
        NmtError: the checkpoint reads back with other weights, or the disk has too little space.
    """
    weights = gather_tensors(trainer.parallel, trainer.stored_weights(), trainer.world.is_main)
    if not trainer.world.is_main:
        return 0
    run, config = trainer.run, trainer.config
    # A name that a later start sweeps away, should this one be killed.
    beginning = ".preflight.partial-"
    # In the run's directory, because only its own disk can tell what it holds.
    with (
        files.named(run.path, run.path / beginning),
        TemporaryDirectory(prefix=beginning, dir=run.path) as scratch,
    ):
        path = Path(scratch)
        trial = replace(run, path=path)
        saved = trial.save(0, weights, None, {}, {}, best=True)
        # Read back: some file systems lose data without an error.
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


def fit_micro_batches(trainer: Trainer) -> None:
    """Set `max_tokens` to the largest micro-batch of longest pairs that fits each GPU."""
    # The optimizer's state belongs to the memory that a micro-batch must leave free.
    trainer.allocate()
    split, world = trainer.loader.split, trainer.world
    rows = trainer.loader.rows_per_sentence
    fits = rows * int(max(split.source_lengths.max(), split.target_lengths.max()))
    # A CUDA graph keeps the memory of its micro-batch, so later micro-batches cannot use it.
    copies = 2 if trainer.config.cuda_graphs else 1
    # A micro-batch larger than a process's share of the update would never be filled.
    most = copies * rows * trainer.config.tokens_per_update // world.size
    for tokens in _candidates(fits, most):
        try:
            trainer.try_batch(longest_batch(split, tokens // rows, trainer.loader.link))
        except torch.cuda.OutOfMemoryError:
            break
        fits = tokens
    # A failed trial leaves fragments that later allocations could not use.
    torch.cuda.empty_cache()
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)  # reports show the peak of training
    # The minimum over all processes, less one eighth for fragmented memory.
    trainer.set_max_tokens(int(-world.max([-fits])[0]) * 7 // (8 * copies))


def _candidates(least: int, most: int) -> Iterator[int]:
    """Yield micro-batch sizes to try, in tokens; each is 1.5 times the one before."""
    tokens = least
    # So far that seven eighths of the largest size reach `most`.
    while tokens < 8 / 7 * 1.5 * most:
        yield tokens
        tokens += tokens // 2


LONGEST_WARMUP = timedelta(hours=3)
"""A warm-up longer than this is most likely a mistake."""

TRIAL = 5
"""Training of at most so many updates tries a command out; it is not meant to learn."""


def misfit(warmup_updates: int, updates: int, seconds: float, limit: float) -> str | None:
    """Return a warning if training is likely to end before the model learns, else None.

    Args:
        warmup_updates: updates of warm-up.
        updates: updates of the whole training.
        seconds: estimated seconds of an update.
        limit: seconds after which training ends; infinite without a limit.
    """
    if updates <= TRIAL:
        return None
    # The commonest beginner's mistake: the paper's 4,000 updates of warm-up in an hour on a CPU.
    possible = min(updates, limit / seconds)
    remedy = "write a recipe that fits with `nmt init`, or take --warmup-updates {}"
    warm_up = f"warm-up ends after {_in_words(warmup_updates * seconds)} on this machine"
    if possible < warmup_updates:
        end = _in_words(limit) if limit / seconds < updates else f"{updates:,} updates"
        fitting = max(1, int(possible) // 10)
        return f"{warm_up}, training after {end}, before it learns: {remedy.format(fitting)}"
    if warmup_updates * seconds > LONGEST_WARMUP.total_seconds():
        fitting = max(1, int(LONGEST_WARMUP.total_seconds() / seconds))
        return f"{warm_up}: {remedy.format(fitting)}"
    return None


FINISHED = 0.1
"""Share of the highest learning rate by which a decay may miss its end."""


def unfinished_decay(schedule: Schedule, updates: int, seconds: float, limit: float) -> str | None:
    """Return a warning if time is likely to end training far from the end of its decay, else None.

    Args:
        schedule: of the learning rate.
        updates: updates of the whole training.
        seconds: estimated seconds of an update.
        limit: seconds after which training ends; infinite without a limit.
    """
    possible = limit / seconds
    if updates <= TRIAL or not schedule.depends_on_max_updates:
        return None
    if not schedule.warmup_updates <= possible < updates:  # it ends in warm-up, or in time
        return None
    left = schedule.decay(int(possible), updates)
    if left - schedule.decay(updates, updates) < FINISHED:
        return None
    return (
        f"max_minutes ends training after about {possible:,.0f} of {updates:,} updates, with "
        f"{left:.0%} of the highest learning rate; for the {schedule.name} schedule to reach its "
        f"end, take --max-updates {max(1, int(possible))}"
    )


def _in_words(seconds: float) -> str:
    """Return a duration in its largest unit."""
    units = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
    unit, size = next((unit for unit in units.items() if seconds >= 2 * unit[1]), ("second", 1))
    count = max(1, round(seconds / size))
    return f"{count:,} {unit}" + "s" * (count != 1)

"""Batches that run before training, to find the memory and the time that training takes.

Their gradients are dropped.
"""

from __future__ import annotations

import time
from itertools import chain, count, islice

import numpy as np
import torch

from nmt.data.batches import Batch, Link, make_batch
from nmt.data.dataset import Split
from nmt.errors import NmtError
from nmt.training.sequence import SequenceLoss
from nmt.training.trainer import Trainer


def longest_batch(split: Split, max_tokens: int, link: Link | None = None) -> Batch:
    """Return a batch of the longest pairs: at least one, at most `max_tokens` padded tokens."""
    longer = np.maximum(split.source_lengths, split.target_lengths)
    most = min(len(longer), max(1, max_tokens // int(longer.max())))
    return make_batch(split, np.argpartition(longer, len(longer) - most)[-most:], link)


def try_longest_batch(trainer: Trainer) -> None:
    """Run the longest batch forward and backward; raise an NmtError if it does not fit."""
    loader, max_tokens = trainer.loader, trainer.loader.max_tokens
    batch = longest_batch(loader.split, max_tokens // loader.rows_per_sentence, loader.link)
    try:
        trainer.try_batch(batch)
    except torch.cuda.OutOfMemoryError:
        longest = f"{batch.packing.source.longest} and {batch.packing.target.longest} tokens"
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

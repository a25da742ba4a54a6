"""The size of micro-batches where it is to be found: as large as fits the memory of each GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nmt.training.trainer import Trainer
from nmt.training.trial_batches import longest_batch


def fit_micro_batches(trainer: Trainer) -> None:
    """Set `max_tokens` to the largest micro-batch of longest pairs that fits each GPU."""
    trainer.allocate()
    split, world = trainer.loader.split, trainer.world
    rows = trainer.loader.rows_per_sentence
    fits = rows * int(max(split.source_lengths.max(), split.target_lengths.max()))
    # Recordings keep the memory of a micro-batch, which others that are launched cannot use.
    copies = 2 if trainer.config.cuda_graphs else 1
    most = copies * rows * trainer.config.tokens_per_update // world.size
    for tokens in _candidates(fits, most):
        try:
            trainer.try_batch(longest_batch(split, tokens // rows, trainer.loader.link))
        except torch.cuda.OutOfMemoryError:
            break
        fits = tokens
    torch.cuda.empty_cache()
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)  # reports show the peak of training
    # The minimum over all processes, less one eighth for fragmented memory.
    trainer.set_max_tokens(int(-world.max([-fits])[0]) * 7 // (8 * copies))


def _candidates(least: int, most: int) -> Iterator[int]:
    """Yield micro-batch sizes to try, in tokens; each is 1.5 times the one before."""
    tokens = least
    while tokens < 8 / 7 * 1.5 * most:
        yield tokens
        tokens += tokens // 2

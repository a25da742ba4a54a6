"""Forced decoding: what a model gives to targets that are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nmt.data.batches import as_rows, target_input
from nmt.models.base import Model

POSITIONS = 1024
"""Target positions of a batch, for which the logits of the whole vocabulary are held at once."""


def token_log_probabilities(
    model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> list[list[float]]:
    """Natural logarithms of the probability of every target token, as a search sums them.

    Args:
        model: in the mode, and under the gradient and precision contexts, of the caller.
        sources: token ids, each with its EOS.
        targets: token ids, as many; with EOS where that is to be scored, too.
        device: the model's.
    """
    found: list[list[float]] = [[] for _ in sources]
    for batch, source, inputs, target in _batches(sources, targets, device):
        logits = model(source, inputs).float()  # [B, T, V]
        log_probs = logits.gather(-1, target[..., None]) - logits.logsumexp(-1, keepdim=True)
        for at, row in zip(batch, log_probs[..., 0].tolist(), strict=True):
            found[at] = row[: len(targets[at])]
    return found


def attention_weights(
    model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> list[Tensor]:
    """How much giving each target token attends to each source token: [T, S] for each pair.

    Arguments are those of :func:`token_log_probabilities`.

    Raises:
        NmtError: the model has no attention.
    """
    found = [torch.empty(0)] * len(sources)
    for batch, source, inputs, _ in _batches(sources, targets, device):
        for at, weights in zip(batch, model.source_attention(source, inputs).cpu(), strict=True):
            found[at] = weights[: len(targets[at]), : len(sources[at])]
    return found


def _batches(
    sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor, Tensor]]:
    """Which pairs are in a batch, their sources [B, S], what is read and what is given [B, T]."""
    by_length = sorted(range(len(targets)), key=lambda at: (len(targets[at]), len(sources[at])))
    while by_length:
        widest = len(targets[by_length[-1]]) or 1
        size = max(1, POSITIONS // widest)
        batch, by_length = by_length[-size:], by_length[:-size]
        source = as_rows([sources[at] for at in batch]).to(device)
        target = as_rows([targets[at] for at in batch]).to(device)
        yield batch, source, target_input(target), target

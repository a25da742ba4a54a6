"""Forced decoding: log-probabilities and attention of given targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nmt.data.batches import as_rows, target_input
from nmt.data.vocabulary import BOS
from nmt.models.base import Model

POSITIONS = 1024
"""Maximum number of source positions and of target positions in a batch of several pairs: each
target position holds the logits of the whole vocabulary."""


def token_log_probabilities(
    model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> list[list[float]]:
    """Return the log-probability of each target token, natural logarithm, as a search sums them.

    Args:
        model: used in its current mode, under the caller's gradient and precision contexts.
        sources: token ids, each with its EOS.
        targets: token ids, one list per source; with EOS to score the EOS, too.
        device: device of the model.
    """
    results: list[list[float]] = [[] for _ in sources]
    for batch, source, inputs, target in _batches(sources, targets, device):
        logits = model(source, inputs).float()  # [B, T, V]
        log_probs = logits.gather(-1, target[..., None]) - logits.logsumexp(-1, keepdim=True)
        for at, row in zip(batch, log_probs[..., 0].tolist(), strict=True):
            results[at] = row[: len(targets[at])]
    return results


def next_log_probabilities(
    model: Model, source: list[int], prefix: list[int], device: torch.device
) -> Tensor:
    """Return the log-probability [V] of each token after the prefix of a target.

    Args:
        model: used in its current mode, under the caller's gradient and precision contexts.
        source: token ids with EOS.
        prefix: token ids.
        device: device of the model.
    """
    logits = model(as_rows([source]).to(device), as_rows([[BOS, *prefix]]).to(device))  # [1, T, V]
    return logits[0, -1].float().log_softmax(-1).cpu()  # type: ignore[no-any-return]


def attention_weights(
    model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> list[Tensor]:
    """Return the attention of each target token to each source token: [T, S] for each pair.

    The arguments are those of :func:`token_log_probabilities`.

    Raises:
        NmtError: the model has no attention.
    """
    results = [torch.empty(0)] * len(sources)
    for batch, source, inputs, _ in _batches(sources, targets, device):
        for at, weights in zip(batch, model.source_attention(source, inputs).cpu(), strict=True):
            results[at] = weights[: len(targets[at]), : len(sources[at])]
    return results


def _batches(
    sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor, Tensor]]:
    """Yield batches: indices of the pairs, sources [B, S], target inputs and targets [B, T]."""
    pairs = zip(sources, targets, strict=True)
    lengths = [(max(map(len, pair)), *map(len, pair)) for pair in pairs]
    by_length = sorted(range(len(targets)), key=lengths.__getitem__)
    while by_length:
        widest, *_ = lengths[by_length[-1]]
        size = max(1, POSITIONS // widest)
        batch, by_length = by_length[-size:], by_length[:-size]
        source = as_rows([sources[at] for at in batch]).to(device)
        target = as_rows([targets[at] for at in batch]).to(device)
        yield batch, source, target_input(target), target

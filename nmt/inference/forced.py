"""Forced decoding: what a model gives to targets that are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.data.format import BOS, PAD
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
    by_length = sorted(range(len(targets)), key=lambda at: (len(targets[at]), len(sources[at])))
    while by_length:
        widest = len(targets[by_length[-1]]) or 1
        size = max(1, POSITIONS // widest)
        batch, by_length = by_length[-size:], by_length[:-size]
        source = _padded([sources[at] for at in batch], device)
        target = _padded([targets[at] for at in batch], device)
        inputs = torch.nn.functional.pad(target, (1, 0), value=BOS)[:, :-1]
        logits = model(source, inputs).float()  # [B, T, V]
        gains = logits.gather(-1, target[..., None]) - logits.logsumexp(-1, keepdim=True)
        for at, row in zip(batch, gains[..., 0].tolist(), strict=True):
            found[at] = row[: len(targets[at])]
    return found


def _padded(rows: list[list[int]], device: torch.device) -> Tensor:
    width = max(1, *map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=device)

"""Numbers that sum attention up: entropy, neighbours that heads attend to, and rollout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.models.base import AttentionMap

NEIGHBOUR_WEIGHT = 0.5
"""Mean weight above which a head is said to attend to a neighbour."""


@dataclass(frozen=True)
class HeadSummary:
    """One head, over all queries of some sentences."""

    kind: str
    layer: int
    head: int
    """From 1."""
    entropy: float
    """Mean entropy of the weights of a query, in bits; 0 if all weight is on one token."""
    previous: float | None
    """Mean weight on the token before the query, of queries that have one; None for
    cross-attention."""
    same: float | None
    """Mean weight on the query's own position."""
    next: float | None
    """Mean weight on the token after the query."""

    @property
    def attends_to(self) -> str | None:
        """Return "previous", "same" or "next" if most weight is there."""
        for name in ("previous", "same", "next"):
            if (getattr(self, name) or 0.0) > NEIGHBOUR_WEIGHT:
                return name
        return None


def summarise(sentences: Sequence[Sequence[AttentionMap]]) -> list[HeadSummary]:
    """Return a summary of every head, over sentences that the same model has read.

    Args:
        sentences: the maps of each sentence, of a batch of one without padding.
    """
    summaries = []
    for maps in zip(*sentences, strict=True):
        first = maps[0]
        weights = [layer.weights[0].double() for layer in maps]  # [H, Q, S] each
        entropy = _mean(
            -torch.xlogy(part, part).sum(-1) / torch.log(torch.tensor(2.0)) for part in weights
        )
        for head in range(len(entropy)):
            near: list[float | None] = [None, None, None]
            if first.kind != "cross":
                near = [_near(weights, offset)[head] for offset in (-1, 0, 1)]
            summaries.append(HeadSummary(first.kind, first.layer, head + 1, entropy[head], *near))
    return summaries


def _near(weights: Iterable[Tensor], offset: int) -> list[float]:
    """Return the mean weight of each head on the key at a distance from the query."""
    return _mean(part.diagonal(offset, 1, 2) for part in weights)


def _mean(values: Iterable[Tensor]) -> list[float]:
    """Return the mean of each head [H] over queries of all sentences: values [H, Q] each."""
    joined = torch.cat(list(values), dim=1)
    means: list[float] = (joined.sum(1) / max(joined.shape[1], 1)).tolist()
    return means


def rollout(maps: Iterable[AttentionMap]) -> dict[str, Tensor]:
    """Return how much of each position's output comes from each input token, through all layers.

    Attention rollout (Abnar and Zuidema 2020): each attention passes on half of its input
    unchanged, by the residual connection, and half by the mean of its heads.

    Args:
        maps: of a Transformer, of a batch of one; the decoder's layers each have cross-attention.

    Returns:
        "encoder" [S, S]; "cross" [T, S] and "decoder" [T, T], of which each row of both together
        sums to 1. Nothing for a stack without self-attention, or a model without any.
    """
    means = {(layer.kind, layer.layer): layer.weights[0].mean(0) for layer in maps}
    if not any(kind != "cross" for kind, _ in means):
        return {}
    steps, length = means["cross", 1].shape
    encoder = torch.eye(length, device=means["cross", 1].device)
    decoder = torch.eye(steps, device=encoder.device)
    cross = decoder.new_zeros(steps, length)
    depth = max(layer for _, layer in means)
    for layer in range(1, depth + 1):
        if ("encoder", layer) in means:
            encoder = (encoder + means["encoder", layer] @ encoder) / 2
    for layer in range(1, depth + 1):
        if ("decoder", layer) in means:
            mixed = means["decoder", layer]
            decoder, cross = (decoder + mixed @ decoder) / 2, (cross + mixed @ cross) / 2
        if ("cross", layer) in means:
            decoder, cross = decoder / 2, (cross + means["cross", layer] @ encoder) / 2
    flows = {"encoder": encoder, "decoder": decoder, "cross": cross}
    return {kind: flow for kind, flow in flows.items() if any(kind == name for name, _ in means)}

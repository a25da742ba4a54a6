"""Summaries of attention (entropy, neighbours, rollout), and the hypotheses of a search as a tree.

A strategy that wraps another strategy records the hypotheses, so a search without a tree does no
extra work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nmt.models.base import AttentionMap
from nmt.search import Hypothesis, Strategy
from nmt.search.base import SearchState
from nmt.search.hypotheses import Continuations

NEIGHBOUR_WEIGHT = 0.5
"""A head attends to a neighbour if the mean weight is greater."""


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
    """Mean weight on the token before the query; None for cross-attention."""
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
        sentences: the attention maps of each sentence, from batches of one sentence without
            padding.
    """
    summaries = []
    for maps in zip(*sentences, strict=True):
        first = maps[0]
        weights = [layer.weights[0].double() for layer in maps]  # [H, Q, S] each
        entropy = _mean(
            # 0 log 0 is 0 here.
            -torch.xlogy(part, part).sum(-1) / torch.log(torch.tensor(2.0))
            for part in weights
        )
        for head in range(len(entropy)):
            near: list[float | None] = [None, None, None]
            if first.kind != "cross":
                near = [_near(weights, offset)[head] for offset in (-1, 0, 1)]
            summaries.append(HeadSummary(first.kind, first.layer, head + 1, entropy[head], *near))
    return summaries


def rollout(maps: Iterable[AttentionMap]) -> dict[str, Tensor]:
    """Return how much of each position's output comes from each input token, through all layers.

    Attention rollout (Abnar and Zuidema 2020): each attention passes on half of its input
    unchanged, by the residual connection, and half by the mean of its heads.

    Args:
        maps: attention maps of a Transformer, from a batch of one sentence; all decoder layers have
            cross-attention.

    Returns:
        "encoder" [S, S]; "cross" [T, S] and "decoder" [T, T], whose rows together sum to 1. A stack
        without self-attention has no entry.
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
            # The residual half stays with the target's tokens; the other half comes from the
            # source.
            decoder, cross = decoder / 2, (cross + means["cross", layer] @ encoder) / 2
    flows = {"encoder": encoder, "decoder": decoder, "cross": cross}
    return {kind: flow for kind, flow in flows.items() if any(kind == name for name, _ in means)}


@dataclass(frozen=True)
class Node:
    """A hypothesis that the search kept after a step."""

    parent: int | None
    """Index of the hypothesis that this node continues; None for a hypothesis of one token."""
    step: int
    """Number of the step, from 1."""
    tokens: tuple[int, ...]
    """Target ids, without BOS and EOS."""
    log_probability: float
    score: float
    finished: bool
    """Whether the hypothesis ends here with EOS."""
    is_best: bool = False
    """Whether the best hypothesis of the search is, or continues, this hypothesis."""


@dataclass(frozen=True, kw_only=True)
class Traced(Strategy):
    """A strategy that records the hypotheses of one sentence after each step."""

    inner: Strategy
    steps: list[list[Hypothesis]] = field(default_factory=list)
    """Hypotheses after each step, alive and finished."""

    @property
    def rows_per_sentence(self) -> int:
        """Rows of the wrapped strategy."""
        return self.inner.rows_per_sentence

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return the state of the wrapped strategy, which records its hypotheses."""
        return _TracedState(self.inner.open(source, max_lengths, count), self.steps)


def tree(steps: list[list[Hypothesis]], best: Hypothesis) -> list[Node]:
    """Return the hypotheses of all steps, each once, parents before their children.

    Args:
        steps: hypotheses after each step, from :class:`Traced`.
        best: the best hypothesis in the end.
    """
    indices: dict[tuple[tuple[int, ...], bool], int] = {}
    nodes: list[Node] = []
    for step, hypotheses in enumerate(steps, 1):
        for hypothesis in hypotheses:
            tokens, finished = tuple(hypothesis.tokens), hypothesis.finished
            if (tokens, finished) in indices:
                continue
            indices[tokens, finished] = len(nodes)
            # EOS is no token of a hypothesis, so a finished one continues the same tokens.
            parent = indices.get((tokens if finished else tokens[:-1], False))
            values = hypothesis.log_probability, hypothesis.score
            nodes.append(Node(parent, step, tokens, *values, finished))
    at = indices.get((tuple(best.tokens), best.finished))
    while at is not None:
        nodes[at] = replace(nodes[at], is_best=True)
        at = nodes[at].parent
    return nodes


class _TracedState(SearchState):
    def __init__(self, inner: SearchState, steps: list[list[Hypothesis]]) -> None:
        self.inner, self.steps = inner, steps
        self.alive = inner.alive

    def advance(self, continuations: Continuations) -> Tensor | None:
        """Advance the hypotheses by a token, and record them."""
        parents = self.inner.advance(continuations)
        self.alive = self.inner.alive
        [alive], [ranked] = self.alive.hypotheses(), self.inner.hypotheses()
        # With too few finished hypotheses, the search ranks alive ones, which are there already.
        self.steps.append([*alive, *(hypothesis for hypothesis in ranked if hypothesis.finished)])
        return parents

    def is_done(self) -> Tensor:
        return self.inner.is_done()

    def select_sentences(self, sentences: Tensor) -> SearchState:
        return self.inner.select_sentences(sentences)

    def hypotheses(self) -> list[list[Hypothesis]]:
        return self.inner.hypotheses()


def _near(weights: Iterable[Tensor], offset: int) -> list[float]:
    """Return the mean weight of each head on the key at a distance from the query."""
    return _mean(part.diagonal(offset, 1, 2) for part in weights)


def _mean(values: Iterable[Tensor]) -> list[float]:
    """Return the mean of each head [H] over queries of all sentences: values [H, Q] each."""
    joined = torch.cat(list(values), dim=1)
    means: list[float] = (joined.sum(1) / max(joined.shape[1], 1)).tolist()
    return means

"""The hypotheses that a search keeps after each step, as a tree.

A strategy that wraps another one notes them, so searches that nobody asks for a tree do no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from nmt.search import Hypothesis, Strategy
from nmt.search.base import SearchState
from nmt.search.continuations import Continuations


@dataclass(frozen=True)
class Node:
    """A hypothesis that the search kept after a step."""

    parent: int | None
    """Index of the hypothesis that this one continues; None for a hypothesis of one token."""
    step: int
    """Number of the step, from 1."""
    tokens: tuple[int, ...]
    """Target ids, without BOS and EOS."""
    log_probability: float
    score: float
    finished: bool
    """Whether the hypothesis ends here with EOS."""
    is_best: bool = False
    """Whether the best hypothesis of the search is, or continues, this one."""


@dataclass(frozen=True, kw_only=True)
class Traced(Strategy):
    """A strategy that notes the hypotheses of one sentence after each step."""

    inner: Strategy
    steps: list[list[Hypothesis]] = field(default_factory=list)
    """Hypotheses after each step, alive and finished."""

    @property
    def rows_per_sentence(self) -> int:
        """Rows of the wrapped strategy."""
        return self.inner.rows_per_sentence

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return the state of the wrapped strategy, which notes its hypotheses."""
        return _TracedState(self.inner.open(source, max_lengths, count), self.steps)


class _TracedState(SearchState):
    def __init__(self, inner: SearchState, steps: list[list[Hypothesis]]) -> None:
        self.inner, self.steps = inner, steps
        self.alive = inner.alive

    def advance(self, continuations: Continuations) -> Tensor | None:
        """Advance the hypotheses by a token, and note them."""
        parents = self.inner.advance(continuations)
        self.alive = self.inner.alive
        [alive], [ranked] = self.alive.hypotheses(), self.inner.hypotheses()
        self.steps.append([*alive, *(hypothesis for hypothesis in ranked if hypothesis.finished)])
        return parents

    def is_done(self) -> Tensor:
        return self.inner.is_done()

    def select_sentences(self, sentences: Tensor) -> SearchState:
        return self.inner.select_sentences(sentences)

    def hypotheses(self) -> list[list[Hypothesis]]:
        return self.inner.hypotheses()


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
            parent = indices.get((tokens if finished else tokens[:-1], False))
            values = hypothesis.log_probability, hypothesis.score
            nodes.append(Node(parent, step, tokens, *values, finished))
    at = indices.get((tuple(best.tokens), best.finished))
    while at is not None:
        nodes[at] = replace(nodes[at], is_best=True)
        at = nodes[at].parent
    return nodes

"""Greedy search: takes the likeliest token at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.lazy import torch
from nmt.search.base import SearchState, Strategy, check_lengths, diverged, strategies
from nmt.search.constraints import Constraint
from nmt.search.hypotheses import Continuations, Hypotheses, Hypothesis

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.models.base import Model


@strategies.register("greedy")
@dataclass(frozen=True, kw_only=True)
class Greedy(Strategy):
    """One hypothesis per sentence; the score is the log-probability."""

    @property
    def rows_per_sentence(self) -> int:
        """One row per sentence."""
        return 1

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> GreedyState:
        """Return one empty sequence per sentence."""
        return GreedyState(Hypotheses.open(source))

    def search(
        self,
        model: Model,
        source: Tensor,
        max_lengths: Tensor,
        constraints: Sequence[Constraint] = (),
        phrases: Tensor | None = None,
        count: int = 1,
    ) -> list[list[Hypothesis]]:
        """Search like :meth:`Strategy.search`, on a CPU without constraints in fewer operators.

        A step of a small model takes less time than the operators that advance a
        :class:`GreedyState`.
        """
        # The common loop gives the same output; this one calls fewer operators, which are what the
        # step of a small student consists of.
        if constraints or phrases is not None or source.device.type != "cpu":
            return super().search(model, source, max_lengths, constraints, phrases, count)
        longest = check_lengths(max_lengths, count)
        sentences = _Sentences(max_lengths.tolist())
        state = model.start(source)
        last, sums = torch.full((len(source), 1), BOS), torch.zeros(len(source), 1)
        for step in range(1, longest + 1):
            # In float32 in every precision, as in the common loop.
            logits = model.step(last, state)[:, 0].float()
            log_probabilities = logits.log_softmax(-1)
            # numpy finds a maximum, the first of equals, in a tenth of torch's time.
            # The array shares the memory of the logits, whose log-softmax is computed already.
            values = logits.detach().numpy()
            # After the log-softmax: PAD and BOS keep their share of the probability, as in the
            # common loop.
            values[:, PAD] = values[:, BOS] = float("-inf")
            tokens = values.argmax(-1)
            last = torch.from_numpy(tokens)[:, None]
            sums = sums + log_probabilities.gather(1, last)
            staying = sentences.append(tokens.tolist(), sums[:, 0].tolist(), step)
            if staying is not None:
                if not staying:
                    break
                # [B', 1], the parents that State.select expects.
                rows = torch.tensor(staying)[:, None]
                last, sums = last[staying], sums[staying]
                state.select(rows)
        return [[hypothesis] for hypothesis in sentences.hypotheses()]


class _Sentences:
    """The tokens of each sentence, and which sentences are not finished."""

    def __init__(self, max_lengths: list[int]) -> None:
        self.max_lengths = max_lengths
        self.tokens: list[list[int]] = [[] for _ in max_lengths]
        self.log_probabilities = [0.0 for _ in max_lengths]
        self.unfinished = list(range(len(max_lengths)))

    def append(
        self, tokens: list[int], log_probabilities: list[float], step: int
    ) -> list[int] | None:
        """Append a token to each unfinished sentence.

        Args:
            tokens: one for each unfinished sentence.
            log_probabilities: of the sentences up to these tokens.
            step: number of the step, from 1.

        Returns:
            Indices of the arguments whose sentences remain unfinished; None if all do.

        Raises:
            NmtError: a log-probability is NaN.
        """
        staying = []
        for at, (sentence, token) in enumerate(zip(self.unfinished, tokens, strict=True)):
            self.tokens[sentence].append(token)
            self.log_probabilities[sentence] = log_probabilities[at]
            if token != EOS and step < self.max_lengths[sentence]:
                staying.append(at)
        # After the loop: argmax takes NaN for the greatest value, so NaN always arrives here.
        if any(map(math.isnan, log_probabilities)):
            raise diverged(step)
        if len(staying) == len(tokens):
            return None
        self.unfinished = [self.unfinished[at] for at in staying]
        return staying

    def hypotheses(self) -> list[Hypothesis]:
        """Return the hypothesis of each sentence."""
        return [
            Hypothesis(
                tokens[:-1] if tokens[-1] == EOS else tokens, total, total, tokens[-1] == EOS
            )
            for tokens, total in zip(self.tokens, self.log_probabilities, strict=True)
        ]


@dataclass
class GreedyState(SearchState):
    """The one sequence of each sentence."""

    alive: Hypotheses

    def advance(self, continuations: Continuations) -> None:
        """Append the likeliest token; of equals, the one with the lowest id."""
        log_probs, tokens = continuations.log_probabilities.max(-1)  # [B, 1], the first of equals
        log_probabilities = self.alive.log_probabilities + log_probs
        self.alive = self.alive.extend(tokens, log_probabilities, scores=log_probabilities)

    def is_done(self) -> Tensor:
        """Return the sentences whose sequence ends with EOS: [B] bool."""
        return self.alive.tokens[:, 0, -1] == EOS

    def select_sentences(self, sentences: Tensor) -> GreedyState:
        """Return the state of the given sentences."""
        return GreedyState(self.alive.select_sentences(sentences))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return one hypothesis per sentence."""
        return self.alive.hypotheses()

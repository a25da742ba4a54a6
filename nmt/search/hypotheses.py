"""Hypotheses: one as a list of tokens, and those of a batch as tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, UNK


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Target ids, without BOS and EOS."""

    log_probability: float
    """Natural logarithm, summed over the tokens and, where finished, the EOS."""

    score: float
    """Ranking score: the log-probability after any length penalty and coverage penalty; with
    `search.mbr` the expected utility, in per cent."""

    finished: bool
    """Whether the hypothesis ended with EOS; otherwise it was cut at the maximum length."""

    @property
    def output(self) -> list[int]:
        """Target ids, with EOS if the hypothesis is finished."""
        return [*self.tokens, EOS] if self.finished else self.tokens


@dataclass(frozen=True)
class Hypotheses:
    """R sequences for each of B sentences."""

    tokens: Tensor  # [B, R, T] int64, BOS first, PAD after EOS
    log_probabilities: Tensor  # [B, R] float32
    scores: Tensor  # [B, R] float32; minus infinity where there is no sequence

    @property
    def last(self) -> Tensor:
        """Last token of each row, [B, R]: the model's next input.

        The last token of an ended row is UNK; nothing reads the model's output for the row.
        """
        last = self.tokens[:, :, -1]
        return last.masked_fill((last == EOS) | (last == PAD), UNK)

    @classmethod
    def open(cls, source: Tensor) -> Hypotheses:
        """Return one row per sentence, which contains only BOS."""
        tokens = source.new_full((len(source), 1, 1), BOS)
        zeros = torch.zeros(tokens.shape[:2], device=source.device)
        return cls(tokens, zeros, zeros)

    def extend(self, tokens: Tensor, log_probabilities: Tensor, scores: Tensor) -> Hypotheses:
        """Append one token to each row; all arguments are [B, R]."""
        return Hypotheses(
            torch.cat((self.tokens, tokens[..., None]), dim=-1), log_probabilities, scores
        )

    def take(self, index: Tensor) -> Hypotheses:
        """Select the rows `index` [B, R'] of each sentence."""
        wide = index[..., None].expand(-1, -1, self.tokens.size(-1))
        return Hypotheses(
            self.tokens.gather(1, wide),
            self.log_probabilities.gather(1, index),
            self.scores.gather(1, index),
        )

    def select_sentences(self, sentences: Tensor) -> Hypotheses:
        """Select all rows of the given sentences: indices [B'] int64."""
        return Hypotheses(
            self.tokens[sentences], self.log_probabilities[sentences], self.scores[sentences]
        )

    def without(self, pruned: Tensor) -> Hypotheses:
        """Set scores and log-probabilities to minus infinity where `pruned` [B, R] is True."""
        never = float("-inf")
        return Hypotheses(
            self.tokens,
            self.log_probabilities.masked_fill(pruned, never),
            self.scores.masked_fill(pruned, never),
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the rows of each sentence in order, without rows scored minus infinity."""
        sentences = zip(
            self.tokens.tolist(),
            self.log_probabilities.tolist(),
            self.scores.tolist(),
            strict=True,
        )
        return [
            [
                _hypothesis(tokens, log_probability, score)
                for tokens, log_probability, score in zip(*sentence, strict=True)
                if score > float("-inf")
            ]
            for sentence in sentences
        ]


def best_first(hypotheses: Iterable[Hypothesis], count: int) -> list[Hypothesis]:
    """Sort hypotheses by score, finished ones first.

    Cut hypotheses are returned only if fewer than `count` are finished.
    """
    ranked = sorted(hypotheses, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
    finished = sum(hypothesis.finished for hypothesis in ranked)
    return ranked[:finished] if finished >= count else ranked


def _hypothesis(tokens: list[int], log_probability: float, score: float) -> Hypothesis:
    finished = EOS in tokens
    end = tokens.index(EOS) if finished else len(tokens)
    return Hypothesis(tokens[1:end], log_probability, score, finished)

"""Sampling: every token drawn from what the model gives, as it is or with the tail cut off.

A draw depends on the seed and on the sentence alone, never on what else is in the batch: equal
lines give equal samples, and another seed gives others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nmt.data.format import BOS, EOS, PAD
from nmt.search.base import Continuations, Frontier, Hypothesis, Rows, Strategy, strategies


@strategies.register("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Strategy):
    """Random outputs; their score is their log-probability, at temperature 1 and with no tail cut.

    Several samples of a sentence are given best first, and may be equal.
    """

    count_key: ClassVar[str | None] = "samples"

    samples: int = 1
    """Outputs for each sentence."""

    temperature: float = 1.0
    """What logits are divided by before a token is drawn; less is more likely, 1 is the model."""

    top_k: int | None = None
    """Only that many likeliest tokens are drawn from (Fan et al. 2018)."""

    top_p: float | None = None
    """Only the likeliest tokens are drawn from that together have this probability (nucleus
    sampling, Holtzman et al. 2020)."""

    seed: int = 1
    """Another one gives other samples."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, not {self.samples}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be more than 0, not {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p lies in (0, 1], not {self.top_p:g}")

    @property
    def rows(self) -> int:
        """The samples."""
        return self.samples

    def open(self, source: Tensor, max_lengths: Tensor) -> SampleFrontier:
        """One empty sequence per sentence, and all the random numbers it will need."""
        longest = int(max_lengths.max())
        numbers = torch.zeros(len(source), self.samples, longest, dtype=torch.float64)
        for row, tokens, length in zip(numbers, source.tolist(), max_lengths.tolist(), strict=True):
            words = " ".join(str(token) for token in (self.seed, *tokens) if token != PAD)
            digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
            row[:, :length] = torch.rand(
                self.samples, length, dtype=torch.float64, generator=generator
            )
        return SampleFrontier(self, Rows.open(source), numbers.to(source.device))

    def probabilities(self, logits: Tensor) -> Tensor:
        """What tokens are drawn with: float64, the shape of the logits [..., V]."""
        logits = logits.double() / self.temperature
        logits[..., [PAD, BOS]] = float("-inf")
        if self.top_k is not None and self.top_k < logits.size(-1):
            least = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        probabilities = logits.softmax(-1).nan_to_num(0.0)  # where nothing may follow
        if self.top_p is not None:
            falling = probabilities.sort(-1, descending=True).values
            is_kept = falling.cumsum(-1) - falling < self.top_p  # what comes before is too little
            least = falling.where(is_kept, 1.0).amin(-1, keepdim=True)
            probabilities = probabilities.masked_fill(probabilities < least, 0.0)
        return probabilities


@dataclass
class SampleFrontier(Frontier):
    """The samples of each sentence; those that have ended wait for the others."""

    strategy: Sample
    alive: Rows
    numbers: Tensor  # [B, K, T] float64 in [0, 1), one for each token to come

    def advance(self, continuations: Continuations) -> Tensor | None:
        """Draws a token for every sample that has not ended."""
        samples, alive = self.strategy.samples, self.alive
        up_to = self.strategy.probabilities(continuations.log_probabilities).cumsum(
            -1
        )  # [B, K or 1, V]
        up_to = up_to.expand(-1, samples, -1).contiguous()
        parents = None
        if alive.tokens.size(1) < samples:  # the first step
            parents = torch.arange(len(up_to), device=up_to.device)[:, None].expand(-1, samples)
            alive = alive.take(torch.zeros_like(parents))
        numbers = self.numbers[..., alive.tokens.size(-1) - 1, None]  # [B, K, 1]
        tokens = torch.searchsorted(up_to, numbers * up_to[..., -1:], right=True)
        tokens = tokens.clamp(max=up_to.size(-1) - 1)[..., 0]  # [B, K]
        ended = (alive.tokens == EOS).any(-1)
        gains = continuations.of_tokens(tokens).masked_fill(ended, 0.0)
        log_probabilities = alive.log_probabilities + gains
        self.alive = alive.extend(
            tokens.masked_fill(ended, PAD), log_probabilities, scores=log_probabilities
        )
        return parents

    def is_done(self) -> Tensor:
        """Those of which all samples have ended."""
        return (self.alive.tokens == EOS).any(-1).all(-1)

    def of(self, sentences: Tensor) -> SampleFrontier:
        """Their samples."""
        return SampleFrontier(self.strategy, self.alive.of(sentences), self.numbers[sentences])

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All samples, the likeliest first."""
        return [sorted(found, key=lambda it: -it.score) for found in self.alive.hypotheses()]

"""Sampling: every token drawn from what the model gives, as it is or with the tail cut off.

A draw depends on the seed and on the sentence alone, never on what else is in the batch: equal
lines give equal samples, and another seed gives others. Several samples are independent, unless
different ones are wanted, which are drawn without replacement.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.search.base import (
    Continuations,
    Hypotheses,
    Hypothesis,
    SearchState,
    Strategy,
    best_first,
    strategies,
)


@strategies.register("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Strategy):
    """Random outputs; their score is their log-probability, at temperature 1 and with no tail cut.

    Several samples of a sentence are given best first, and may be equal; those of an n-best list
    differ, for they are drawn without replacement.
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

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """One empty sequence per sentence, and all the random numbers it will need."""
        if count == 1:
            numbers = self._numbers(self.samples, source, max_lengths)
            return SampleState(self, Hypotheses.open(source), numbers)
        samples = max(self.samples, count)
        numbers = self._numbers(samples, source, max_lengths, 2, samples)
        zeros = torch.zeros(len(source), 1, dtype=torch.float64, device=source.device)
        return DifferentSamples(self, Hypotheses.open(source), zeros, zeros, numbers, count)

    def _numbers(self, samples: int, source: Tensor, max_lengths: Tensor, *each: int) -> Tensor:
        """Of every sample and step: [B, samples, T, *each] float64 in [0, 1)."""
        longest = int(max_lengths.max())
        numbers = torch.zeros(len(source), samples, longest, *each, dtype=torch.float64)
        for row, tokens, length in zip(numbers, source.tolist(), max_lengths.tolist(), strict=True):
            words = " ".join(str(token) for token in (self.seed, *tokens) if token != PAD)
            digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
            row[:, :length] = torch.rand(
                samples, length, *each, dtype=torch.float64, generator=generator
            )
        return numbers.to(source.device)

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
class SampleState(SearchState):
    """The samples of each sentence; those that have ended wait for the others."""

    strategy: Sample
    alive: Hypotheses
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
        tokens = drawn(up_to, self.numbers[..., alive.tokens.size(-1) - 1])  # [B, K]
        ended = (alive.tokens == EOS).any(-1)
        log_probs = continuations.of_tokens(tokens).masked_fill(ended, 0.0)
        log_probabilities = alive.log_probabilities + log_probs
        self.alive = alive.extend(
            tokens.masked_fill(ended, PAD), log_probabilities, scores=log_probabilities
        )
        return parents

    def is_done(self) -> Tensor:
        """Those of which all samples have ended."""
        return (self.alive.tokens == EOS).any(-1).all(-1)

    def select_sentences(self, sentences: Tensor) -> SampleState:
        """Their samples."""
        return SampleState(
            self.strategy, self.alive.select_sentences(sentences), self.numbers[sentences]
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All samples, the likeliest first."""
        return [sorted(found, key=lambda it: -it.score) for found in self.alive.hypotheses()]


@dataclass
class DifferentSamples(SearchState):
    """Samples without replacement: stochastic beam search (Kool et al. 2019).

    Every output has a key, the logarithm of its probability with Gumbel noise, and those with the
    largest keys are the sample. The key of a sequence is the largest of the outputs it may become:
    of what may follow it one continuation inherits the key, and all others have lower ones.
    """

    strategy: Sample
    alive: Hypotheses
    drawn_with: Tensor  # [B, K] float64, logarithms of the probabilities that are drawn with
    keys: Tensor  # [B, K] float64, minus infinity where there is no sequence
    numbers: Tensor  # [B, samples, T, 2, samples] float64 in [0, 1)
    count: int  # hypotheses that are wanted

    def advance(self, continuations: Continuations) -> Tensor:
        """Draws different tokens for every sequence and keeps what has the largest keys."""
        given, alive = continuations.log_probabilities, self.alive
        ended = (alive.tokens == EOS).any(-1, keepdim=True)
        tokens, logarithms, keys = self._children(self.strategy.probabilities(given))
        log_probs = given.gather(-1, tokens).masked_fill(ended, 0.0)
        keys[..., 1:].masked_fill_(ended, float("-inf"))  # one that has ended stays as it is
        keys[..., 0] = self.keys.where(ended[..., 0], keys[..., 0])
        self.keys, best = keys.flatten(1).topk(min(keys.size(-1), keys[0].numel()))
        parents = best // keys.size(-1)
        log_probabilities = alive.log_probabilities.gather(1, parents)
        log_probabilities = log_probabilities + log_probs.flatten(1).gather(1, best)
        self.alive = alive.take(parents).extend(
            tokens.masked_fill(ended, PAD).flatten(1).gather(1, best),
            log_probabilities,
            scores=log_probabilities.masked_fill(self.keys.isneginf(), float("-inf")),
        )
        logarithms = logarithms.masked_fill(ended, 0.0) + self.drawn_with[..., None]
        self.drawn_with = logarithms.flatten(1).gather(1, best)
        rows = given.size(1)
        return parents + torch.arange(0, len(given) * rows, rows, device=parents.device)[:, None]

    def _children(self, probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens without replacement, their log-probabilities and keys: all [B, K, samples]."""
        step = self.alive.tokens.size(-1) - 1
        numbers = self.numbers[:, : probabilities.size(1), step].unbind(-1)  # each [B, K, 2]
        found, key = [], self.keys
        for at, each in enumerate(numbers):
            up_to = probabilities.cumsum(-1)
            rest = up_to[..., -1].log() + self.drawn_with
            if at:  # the largest of the rest: Gumbel noise that stays below the key before it
                key = rest - ((rest - key).exp() - (-each[..., 1]).log1p()).log()
            key = key.masked_fill(rest.isneginf(), float("-inf"))
            token = drawn(up_to, each[..., 0])[..., None]
            found.append((token, probabilities.gather(-1, token).log(), key[..., None]))
            probabilities.scatter_(-1, token, 0.0)
        tokens, logarithms, keys = (torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))
        return tokens, logarithms, keys

    def is_done(self) -> Tensor:
        """Those of which all samples have ended."""
        return ((self.alive.tokens == EOS).any(-1) | self.keys.isneginf()).all(-1)

    def select_sentences(self, sentences: Tensor) -> DifferentSamples:
        """Their samples."""
        return replace(
            self,
            alive=self.alive.select_sentences(sentences),
            drawn_with=self.drawn_with[sentences],
            keys=self.keys[sentences],
            numbers=self.numbers[sentences],
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All samples that have ended, and if they are too few, those that were cut."""
        return [best_first(found, self.count) for found in self.alive.hypotheses()]


def drawn(up_to: Tensor, numbers: Tensor) -> Tensor:
    """Tokens [...] of cumulated probabilities [..., V], by numbers [...] in [0, 1)."""
    at = torch.searchsorted(up_to, numbers[..., None] * up_to[..., -1:], right=True)
    return at[..., 0].clamp(max=up_to.size(-1) - 1)

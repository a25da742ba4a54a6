"""Sampling from the model's distribution, full or truncated (top-k, nucleus).

A sample depends on the seed and the sentence alone, never on the rest of the batch. Samples are
independent, unless distinct samples are requested: these are drawn without replacement.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from nmt.data.vocabulary import EOS, PAD
from nmt.lazy import F, torch
from nmt.search.base import SearchState, Strategy, strategies
from nmt.search.hypotheses import BLOCK, Continuations, Hypotheses, Hypothesis, best_first

if TYPE_CHECKING:
    from torch import Tensor

LEAST_TEMPERATURE = 1e-6
"""Lowest temperature; logits that are divided by a far lower one overflow float32."""


@strategies.register("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Strategy):
    """Random outputs, scored by log-probability at temperature 1 without truncation.

    Several samples of a sentence are sorted best first, and may be equal. The samples of an n-best
    list differ, because they are drawn without replacement.
    """

    count_key: ClassVar[str | None] = "samples"

    samples: int = 1
    """Number of outputs per sentence."""

    temperature: float = 1.0
    """Divisor of the logits before a token is drawn; lower values prefer likely tokens, 1 keeps the
    model's distribution."""

    top_k: int | None = None
    """Number of likeliest tokens to draw from (Fan et al. 2018); all by default."""

    top_p: float | None = None
    """Total probability of the likeliest tokens to draw from (nucleus sampling, Holtzman et al.
    2020); all by default."""

    seed: int = 1
    """Random seed; another seed gives other samples, and equal lines have equal samples."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, not {self.samples}")
        if not self.temperature >= LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature must be at least {LEAST_TEMPERATURE:g}, not {self.temperature:g}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p lies in (0, 1], not {self.top_p:g}")

    @property
    def rows_per_sentence(self) -> int:
        """Number of samples per sentence."""
        return self.samples

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return one empty sequence per sentence, with all random numbers of the search."""
        if count == 1:
            numbers = self._numbers(self.samples, source, max_lengths)
            return SampleState(self, Hypotheses.open(source), numbers)
        # A list that is longer than `samples` needs as many distinct draws as it has entries.
        samples = max(self.samples, count)
        # Two numbers for each draw: one for the token, one for its key.
        numbers = self._numbers(samples, source, max_lengths, 2, samples)
        # float64, because keys come from differences of close numbers.
        zeros = torch.zeros(len(source), 1, dtype=torch.float64, device=source.device)
        return DifferentSamples(self, Hypotheses.open(source), zeros, zeros, numbers, count)

    def _numbers(self, samples: int, source: Tensor, max_lengths: Tensor, *shape: int) -> Tensor:
        """Return random numbers of every sample and step: [B, samples, T, *shape], float64."""
        longest = int(max_lengths.max())
        numbers = torch.zeros(len(source), samples, longest, *shape, dtype=torch.float64)
        for row, tokens, length in zip(numbers, source.tolist(), max_lengths.tolist(), strict=True):
            # Seeded by the sentence itself: neither its place in the batch nor its neighbours
            # matter.
            words = " ".join(str(token) for token in (self.seed, *tokens) if token != PAD)
            digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
            # On the CPU for every device: generators of GPUs give other numbers.
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
            # As many numbers as the sentence's own maximum length: a longer neighbour must not
            # change them.
            row[:, :length] = torch.rand(
                samples, length, *shape, dtype=torch.float64, generator=generator
            )
        return numbers.to(source.device)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the draw, in the shape and dtype of the logits [..., V]."""
        if self.temperature != 1.0:
            logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.size(-1):
            # Tokens that tie with the last one stay, so the order of ids decides nothing.
            least = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        probabilities = logits.softmax(-1).nan_to_num_(0.0)  # 0 if no token may follow
        if self.top_p is not None and self.top_p < 1.0:
            # Nucleus after temperature and top-k, as in Hugging Face.
            falling = probabilities.sort(-1, descending=True).values
            is_kept = (
                falling.cumsum(-1) - falling < self.top_p
            )  # likelier tokens sum to less than top_p
            # The least likely token that is kept; equally likely tokens stay as well.
            least = falling.where(is_kept, 1.0).amin(-1, keepdim=True)
            probabilities = probabilities.masked_fill(probabilities < least, 0.0)
        return probabilities


@dataclass
class SampleState(SearchState):
    """The samples of each sentence; a finished sample waits for the other samples."""

    strategy: Sample
    alive: Hypotheses
    numbers: Tensor  # [B, K, T] float64 in [0, 1), one for each step

    def advance(self, continuations: Continuations) -> Tensor | None:
        """Draw a token for every unfinished sample."""
        samples, alive = self.strategy.samples, self.alive
        probabilities = self.strategy.probabilities(continuations.log_probabilities)
        parents = None
        if alive.tokens.size(1) < samples:  # the first step
            first = torch.arange(len(probabilities), device=probabilities.device)
            # While a sentence has one row, the row's index in the batch is the sentence's.
            parents = first[:, None].expand(-1, samples)
            alive = alive.take(torch.zeros_like(parents))
        tokens = drawn(probabilities, self.numbers[..., alive.tokens.size(-1) - 1])  # [B, K]
        # Finished samples stay in the batch and get PAD, so that every sentence keeps its number of
        # rows.
        ended = (alive.tokens == EOS).any(-1)
        # Scores are at temperature 1 without truncation, so that samples can be compared with
        # beams.
        log_probs = continuations.of_tokens(tokens).masked_fill(ended, 0.0)
        log_probabilities = alive.log_probabilities + log_probs
        self.alive = alive.extend(
            tokens.masked_fill(ended, PAD), log_probabilities, scores=log_probabilities
        )
        return parents

    def is_done(self) -> Tensor:
        """Return the sentences of which all samples are finished: [B] bool."""
        return (self.alive.tokens == EOS).any(-1).all(-1)

    def select_sentences(self, sentences: Tensor) -> SampleState:
        """Return the samples of the given sentences."""
        return SampleState(
            self.strategy, self.alive.select_sentences(sentences), self.numbers[sentences]
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return all samples of each sentence, the likeliest first."""
        return [
            sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
            for hypotheses in self.alive.hypotheses()
        ]


@dataclass
class DifferentSamples(SearchState):
    """Samples without replacement: stochastic beam search (Kool et al. 2019).

    Every output has a key: its log-probability plus Gumbel noise. The outputs with the largest keys
    are the sample. The key of a partial sequence is the maximum over its possible outputs: one
    continuation of the sequence inherits the key, and all other continuations have lower keys.
    """

    strategy: Sample
    alive: Hypotheses
    drawn_with: Tensor  # [B, K] float64, log-probabilities of the draw
    keys: Tensor  # [B, K] float64, minus infinity where there is no sequence
    numbers: Tensor  # [B, samples, T, 2, samples] float64 in [0, 1)
    count: int  # requested hypotheses

    def advance(self, continuations: Continuations) -> Tensor:
        """Draw distinct tokens for every sequence, and keep the sequences with the largest keys."""
        model_log_probs, alive = continuations.log_probabilities, self.alive
        ended = (alive.tokens == EOS).any(-1, keepdim=True)
        tokens, logarithms, keys = self._children(
            self.strategy.probabilities(model_log_probs.double())
        )
        log_probs = model_log_probs.gather(-1, tokens).masked_fill(ended, 0.0)
        keys[..., 1:].masked_fill_(ended, float("-inf"))  # a finished sequence stays as it is
        # A finished sequence competes with the key that it was drawn with.
        keys[..., 0] = self.keys.where(ended[..., 0], keys[..., 0])
        self.keys, best = keys.flatten(1).topk(keys.size(-1))
        parents = best // keys.size(-1)
        log_probabilities = alive.log_probabilities.gather(1, parents)
        log_probabilities = log_probabilities + log_probs.flatten(1).gather(1, best)
        self.alive = alive.extend(
            tokens.masked_fill(ended, PAD).flatten(1).gather(1, best),
            log_probabilities,
            scores=log_probabilities.masked_fill(self.keys.isneginf(), float("-inf")),
            parents=parents,
        )
        logarithms = logarithms.masked_fill(ended, 0.0) + self.drawn_with[..., None]
        self.drawn_with = logarithms.flatten(1).gather(1, best)
        sentences, rows, _ = model_log_probs.shape
        return parents + torch.arange(0, sentences * rows, rows, device=parents.device)[:, None]

    def _children(self, probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw distinct tokens with their log-probabilities and keys: all [B, K, samples]."""
        step = self.alive.tokens.size(-1) - 1
        numbers = self.numbers[:, : probabilities.size(1), step].unbind(-1)  # each [B, K, 2]
        children, key = [], self.keys
        for draw, number in enumerate(numbers):
            # Probability of all continuations that this step has not drawn yet.
            rest = probabilities.sum(-1).log() + self.drawn_with
            if draw:  # largest key of the rest: Gumbel noise truncated at the key before
                # Kool et al.: phi - log(exp(phi - T) - log U), with U = 1 - u, because u may be 0.
                key = rest - ((rest - key).exp() - (-number[..., 1]).log1p()).log()
            # Fewer tokens may follow than samples are requested.
            key = key.masked_fill(rest.isneginf(), float("-inf"))
            token = drawn(probabilities, number[..., 0])[..., None]
            children.append((token, probabilities.gather(-1, token).log(), key[..., None]))
            # Drawing without replacement: the rest is renormalised by its own sum.
            probabilities.scatter_(-1, token, 0.0)
        tokens, logarithms, keys = (
            torch.cat(parts, dim=-1) for parts in zip(*children, strict=True)
        )
        return tokens, logarithms, keys

    def is_done(self) -> Tensor:
        """Return the sentences of which all samples are finished: [B] bool."""
        return ((self.alive.tokens == EOS).any(-1) | self.keys.isneginf()).all(-1)

    def select_sentences(self, sentences: Tensor) -> DifferentSamples:
        """Return the samples of the given sentences."""
        return replace(
            self,
            alive=self.alive.select_sentences(sentences),
            drawn_with=self.drawn_with[sentences],
            keys=self.keys[sentences],
            numbers=self.numbers[sentences],
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the finished samples of each sentence; if too few, the cut ones as well."""
        return [best_first(hypotheses, self.count) for hypotheses in self.alive.hypotheses()]


def drawn(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """Draw tokens [B, K], int64.

    A block of tokens is drawn first, and then one of its tokens. On a CPU this is several times as
    fast as with cumulative sums over the vocabulary.

    Args:
        probabilities: [B, K or 1, V]; their sum may be other than 1.
        numbers: [B, K] float64, uniform in [0, 1).
    """
    vocabulary = probabilities.size(-1)
    if vocabulary % BLOCK:
        probabilities = F.pad(probabilities, (0, -vocabulary % BLOCK))
    blocks = probabilities.reshape(*probabilities.shape[:-1], -1, BLOCK)
    # Sums of blocks first, then sums within one block: a cumulative sum over the vocabulary is
    # slow, and in float32 its rounding would favour some tokens.
    up_to = blocks.sum(-1).double().cumsum(-1)
    rows = (-1, numbers.size(1), -1)
    up_to, blocks = up_to.expand(*rows).contiguous(), blocks.expand(*rows, -1)
    # Scaling one number is cheaper than normalising V probabilities.
    goals = numbers[..., None] * up_to[..., -1:]
    chosen = _first_above(up_to, goals)  # [B, K, 1]
    block = blocks.gather(-2, chosen[..., None].expand(-1, -1, -1, BLOCK))[..., 0, :].double()
    goals = goals - up_to.gather(-1, (chosen - 1).clamp(min=0)).masked_fill(chosen == 0, 0.0)
    at = _first_above(block.cumsum(-1), goals)
    return (chosen * BLOCK + at)[..., 0].clamp(max=vocabulary - 1)


def _first_above(sums: Tensor, goals: Tensor) -> Tensor:
    """Return where cumulative sums [..., N] first exceed goals [..., 1].

    Goals of the whole sum or more, which rounding can cause, are taken to be just below it, so that
    nothing of probability 0 is found.
    """
    whole = sums[..., -1:]
    # A goal that rounding moved to the very end would choose a token of probability 0.
    goals = goals.minimum(whole.nextafter(torch.zeros_like(whole)))
    # Where nothing may follow, all sums are 0, and none exceeds the goal.
    return torch.searchsorted(sums, goals, right=True).clamp(max=sums.size(-1) - 1)

"""The contract of a search strategy, and the loop that all strategies share.

A strategy says how a *frontier* of sequences moves by one token; the loop runs the model and lets
sentences leave the batch as they are done. The laws, tested for every registered strategy: a
batch gives what its sentences give alone, the log-probability of a hypothesis is the one that
the model gives to its tokens, and a list of n has n distinct hypotheses where the model has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.models.base import Model
from nmt.recipe.registry import Registry
from nmt.search.constraints import Constraint


@dataclass(frozen=True)
class Hypothesis:
    """One output that a search found."""

    tokens: list[int]
    """The target ids, without BOS and EOS."""

    log_probability: float
    """Natural logarithm, summed over the tokens and, where finished, the EOS."""

    score: float
    """What hypotheses are ranked by: the log-probability after any length penalty."""

    finished: bool
    """Whether it ended with EOS; otherwise it was cut at the greatest length."""

    @property
    def output(self) -> list[int]:
        """The target ids, with EOS where it was finished."""
        return [*self.tokens, EOS] if self.finished else self.tokens


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """A way to search; a set of values that remembers nothing between calls."""

    registry: ClassVar[Registry[Strategy]]
    count_key: ClassVar[str | None] = None
    """The key that says how many hypotheses are found, where one does."""

    name: str = ""
    """Name of the search strategy whose values the other keys override."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The most rows per sentence that the model is asked for in one step."""

    @property
    def max_hypotheses(self) -> int:
        """The most hypotheses of a sentence that can be relied on, as a list may ask for them.

        As many as rows; a strategy that finds more or fewer overrides this.
        """
        return self.rows

    @abstractmethod
    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """The frontier before the first step; arguments as for :meth:`search`."""

    def open_with(
        self, source: Tensor, max_lengths: Tensor, count: int, phrases: Tensor
    ) -> SearchState:
        """The same where phrases must appear; an NmtError for strategies that cannot place them."""
        raise NmtError(
            f"search.strategy: {self.name} cannot place phrases that must appear; use lexical_beam"
        )

    def search(
        self,
        model: Model,
        source: Tensor,
        max_lengths: Tensor,
        constraints: Sequence[Constraint] = (),
        phrases: Tensor | None = None,
        count: int = 1,
    ) -> list[list[Hypothesis]]:
        """What was found for each sentence: at least one hypothesis, best first.

        Args:
            model: in the mode, and under the gradient and precision contexts, of the caller.
            source: [B, S] int64, each row ends with EOS, padded on the right.
            max_lengths: [B] int64, from 1; the most target tokens of each sentence, with EOS.
            constraints: what may not follow the tokens so far.
            phrases: [B, P, L] int64, tokens that each sentence's outputs must hold, P runs of at
                most L, padded on the right. An output that is cut may lack some.
            count: how many distinct hypotheses of each sentence are wanted. Up to `max_hypotheses`
                are found wherever the model has so many, more where the search comes by them. More
                than one takes more steps: the best is known before the others.

        Raises:
            ValueError: a length or a count below 1.
            NmtError: the model's logits are not numbers, the constraints leave nothing, or the
                strategy cannot place phrases.
        """
        shortest, longest = torch.stack(max_lengths.aminmax()).tolist()
        if shortest < 1:
            raise ValueError(f"a max_length must be at least 1, not {shortest}")
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        found: dict[int, list[Hypothesis]] = {}
        sentences = torch.arange(len(source), device=source.device)  # those still in the batch
        limits = max_lengths
        state = model.start(source, longest)
        if phrases is None:
            search_state = self.open(source, max_lengths, count)
        else:
            search_state = self.open_with(source, max_lengths, count, phrases)
        for step in range(1, longest + 1):
            logits = model.step(search_state.alive.last, state)
            continuations = Continuations.from_logits(logits)
            for constraint in constraints:
                constraint.mask_continuations(
                    continuations.log_probabilities, search_state.alive.tokens
                )
            parents = search_state.advance(continuations)
            done = search_state.is_done() | (limits <= step)
            is_nan = search_state.alive.log_probabilities.isnan().any(1)
            num_done, num_nan = torch.stack((done, is_nan)).sum(1).tolist()  # waits for the device
            if num_nan:
                raise NmtError(
                    f"step {step} of the search: the model's logits are not numbers; "
                    "it has diverged: use another checkpoint"
                )
            if num_done:
                leaving, staying = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
                hypotheses = search_state.select_sentences(leaving).hypotheses()
                found.update(zip(sentences[leaving].tolist(), hypotheses, strict=True))
                if len(staying) == 0:
                    break
                if parents is None:
                    parents = torch.arange(logits.shape[:2].numel(), device=logits.device)
                    parents = parents.view(logits.shape[:2])
                parents = parents[staying]
                sentences, limits = sentences[staying], limits[staying]
                search_state = search_state.select_sentences(staying)
                constraints = [constraint.select_sentences(staying) for constraint in constraints]
            if parents is not None:
                state.select(parents)
        if not all(found.values()):
            raise NmtError("the constraints of the search leave a sentence without any output")
        return [found[sentence] for sentence in range(len(source))]


strategies: Registry[Strategy] = Registry("search strategy", flag="--strategy")
Strategy.registry = strategies


class SearchState(ABC):
    """What a strategy holds of the sentences in the batch between two steps."""

    alive: Hypotheses
    """The sequences that the model is to continue."""

    @abstractmethod
    def advance(self, continuations: Continuations) -> Tensor | None:
        """Moves every sentence by one token.

        Args:
            continuations: the tokens that may follow the K alive rows.

        Returns:
            What the new rows continue, as ``State.select`` wants it: [B, K'] int64; None where
            every row continues itself.
        """

    @abstractmethod
    def is_done(self) -> Tensor:
        """Which sentences need no further step: [B] bool."""

    @abstractmethod
    def select_sentences(self, sentences: Tensor) -> SearchState:
        """The frontier of some sentences: [B'] int64."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """What has been found for each sentence, best first."""


@dataclass(frozen=True)
class Hypotheses:
    """R sequences for each of B sentences."""

    tokens: Tensor  # [B, R, T] int64, BOS first, PAD after EOS
    log_probabilities: Tensor  # [B, R] float32
    scores: Tensor  # [B, R] float32; minus infinity where there is no sequence

    @property
    def last(self) -> Tensor:
        """What the model is to continue: [B, R]; UNK, which nobody reads, where a row has ended."""
        last = self.tokens[:, :, -1]
        return last.masked_fill((last == EOS) | (last == PAD), UNK)

    @classmethod
    def open(cls, source: Tensor) -> Hypotheses:
        """One row per sentence, which holds BOS alone."""
        tokens = source.new_full((len(source), 1, 1), BOS)
        zeros = torch.zeros(tokens.shape[:2], device=source.device)
        return cls(tokens, zeros, zeros)

    def extend(self, tokens: Tensor, log_probabilities: Tensor, scores: Tensor) -> Hypotheses:
        """The same rows, each with one more token: all [B, R]."""
        return Hypotheses(
            torch.cat((self.tokens, tokens[..., None]), dim=-1), log_probabilities, scores
        )

    def take(self, index: Tensor) -> Hypotheses:
        """The rows `index` [B, R'] of each sentence."""
        wide = index[..., None].expand(-1, -1, self.tokens.size(-1))
        return Hypotheses(
            self.tokens.gather(1, wide),
            self.log_probabilities.gather(1, index),
            self.scores.gather(1, index),
        )

    def select_sentences(self, sentences: Tensor) -> Hypotheses:
        """All rows of some sentences: [B'] int64."""
        return Hypotheses(
            self.tokens[sentences], self.log_probabilities[sentences], self.scores[sentences]
        )

    def without(self, pruned: Tensor) -> Hypotheses:
        """The same rows, of which some [B, R] bool no longer count as sequences."""
        never = float("-inf")
        return Hypotheses(
            self.tokens,
            self.log_probabilities.masked_fill(pruned, never),
            self.scores.masked_fill(pruned, never),
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The sequences of each sentence, in order, without those that do not exist."""
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
    """The finished hypotheses by their scores; if they are fewer than `count`, then those cut."""
    ranked = sorted(hypotheses, key=lambda it: (not it.finished, -it.score))
    finished = sum(it.finished for it in ranked)
    return ranked[:finished] if finished >= count else ranked


def _hypothesis(tokens: list[int], log_probability: float, score: float) -> Hypothesis:
    finished = EOS in tokens
    end = tokens.index(EOS) if finished else len(tokens)
    return Hypothesis(tokens[1:end], log_probability, score, finished)


@dataclass(frozen=True)
class Continuations:
    """The tokens that may follow each row."""

    log_probabilities: Tensor
    """[B, K, V] float32, what the model gives; minus infinity where a token may not follow. PAD and
    BOS may not in any case."""

    @classmethod
    def from_logits(cls, logits: Tensor) -> Continuations:
        """All that the model gives [B, K, V], of any floating type."""
        # On a CPU the fused pass takes half the time of logsumexp, though it writes them all.
        log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
        log_probabilities[..., PAD : BOS + 1 : BOS - PAD] = float("-inf")
        return cls(log_probabilities)

    def likeliest(self, count: int) -> tuple[Tensor, Tensor]:
        """The likeliest tokens.

        Args:
            count: how many are wanted of each row.

        Returns:
            float32 log-probabilities and int64 tokens, both [B, K, C]: the `count` likeliest or all
            there are, and maybe others, in the order of their ids, so that whoever takes the first
            of equals takes the lowest id. What may not follow is UNK with minus infinity.
        """
        values, tokens = top(self.log_probabilities, min(count, self.log_probabilities.size(-1)))
        tokens, order = tokens.sort(-1)  # [B, K, C]
        values = values.gather(-1, order)
        return values, tokens.masked_fill(values.isneginf(), UNK)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """One log-probability for each row [B, K'], where K' is K, or K is 1: [B, K'] float32."""
        given = self.log_probabilities.expand(-1, tokens.size(1), -1)
        return given.gather(-1, tokens[..., None])[..., 0]


BLOCK = 64
"""Neighbours among which :func:`top` first finds the largest; a few of the widest vectors."""


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest along the last dimension and where they are, as ``topk`` gives them.

    They lie in the blocks with the largest maxima, so that the others need not be searched; on a
    CPU that takes a quarter of the time. Of minus infinity, places may be beyond the end.
    """
    width = values.size(-1)
    if width < 2 * BLOCK * count:
        return values.topk(count)
    if width % BLOCK:
        values = F.pad(values, (0, -width % BLOCK), value=float("-inf"))
    blocks = values.reshape(-1, BLOCK)  # [rows n, BLOCK]
    maxima = blocks.amax(-1).view(*values.shape[:-1], -1)  # [..., n]
    chosen = maxima.topk(count, sorted=False).indices  # [..., count]
    firsts = torch.arange(0, len(blocks), maxima.size(-1), device=values.device)  # of each row
    rows = (firsts.view(*values.shape[:-1], 1) + chosen).flatten()
    found, at = blocks[rows].view(*values.shape[:-1], -1).topk(count)
    return found, chosen.gather(-1, at // BLOCK) * BLOCK + at % BLOCK

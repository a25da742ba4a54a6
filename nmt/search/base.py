"""The contract of a search strategy, and the loop that all strategies share.

A strategy extends the sequences of a :class:`SearchState` by one token; the loop runs the model and
removes finished sentences from the batch. Tests check three laws for every registered strategy:
a sentence gets the same hypotheses in a batch as alone; the log-probability of a hypothesis equals
the model's log-probability of its tokens; and an n-best list has n distinct hypotheses where the
model can produce n.
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
    """One output of a search."""

    tokens: list[int]
    """Target ids, without BOS and EOS."""

    log_probability: float
    """Natural logarithm, summed over the tokens and, where finished, the EOS."""

    score: float
    """Ranking score: the log-probability after any length penalty."""

    finished: bool
    """Whether the hypothesis ended with EOS; otherwise it was cut at the maximum length."""

    @property
    def output(self) -> list[int]:
        """Target ids, with EOS if the hypothesis is finished."""
        return [*self.tokens, EOS] if self.finished else self.tokens


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """A search strategy: a set of settings without state between calls."""

    registry: ClassVar[Registry[Strategy]]
    count_key: ClassVar[str | None] = None
    """Name of the setting for the number of hypotheses, if the strategy has one."""

    name: str = ""
    """Name of the search strategy whose values the other keys override."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Maximum number of rows per sentence in one step of the model."""

    @property
    def max_hypotheses(self) -> int:
        """Maximum length of an n-best list that the strategy can guarantee.

        The default is `rows`; a strategy that finds more or fewer overrides this property.
        """
        return self.rows

    @abstractmethod
    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return the state before the first step; the arguments are those of :meth:`search`."""

    def open_with(
        self, source: Tensor, max_lengths: Tensor, count: int, phrases: Tensor
    ) -> SearchState:
        """Return the state before the first step of a search with required phrases.

        The arguments are those of :meth:`search`.

        Raises:
            NmtError: the strategy cannot place phrases.
        """
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
        """Search the best outputs of each sentence.

        Args:
            model: used in its current mode, under the caller's gradient and precision contexts.
            source: [B, S] int64; each row ends with EOS and is padded on the right.
            max_lengths: [B] int64, from 1; maximum number of target tokens of each sentence,
                including EOS.
            constraints: constraints on the tokens that may follow.
            phrases: [B, P, L] int64, padded on the right: P phrases of at most L tokens that every
                output of the sentence must contain. A cut output may lack some.
            count: number of distinct hypotheses to find for each sentence. The search finds up to
                `max_hypotheses` wherever the model has so many, and more where it meets them. More
                than one takes more steps, because the best is known before the others.

        Returns:
            For each sentence at least one hypothesis, best first.

        Raises:
            ValueError: a length or the count is below 1.
            NmtError: the model's logits are NaN, the constraints leave no output, or the strategy
                cannot place phrases.
        """
        shortest, longest = torch.stack(max_lengths.aminmax()).tolist()
        if shortest < 1:
            raise ValueError(f"a max_length must be at least 1, not {shortest}")
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        results: dict[int, list[Hypothesis]] = {}
        sentences = torch.arange(len(source), device=source.device)  # still in the batch
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
            num_done, num_nan = (
                torch.stack((done, is_nan)).sum(1).tolist()
            )  # synchronises with the device
            if num_nan:
                raise NmtError(
                    f"step {step} of the search: the model's logits are not numbers; "
                    "it has diverged: use another checkpoint"
                )
            if num_done:
                leaving, staying = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
                hypotheses = search_state.select_sentences(leaving).hypotheses()
                results.update(zip(sentences[leaving].tolist(), hypotheses, strict=True))
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
        if not all(results.values()):
            raise NmtError("the constraints of the search leave a sentence without any output")
        return [results[sentence] for sentence in range(len(source))]


strategies: Registry[Strategy] = Registry("search strategy", flag="--strategy")
Strategy.registry = strategies


class SearchState(ABC):
    """State of a search between two steps, for all sentences in the batch."""

    alive: Hypotheses
    """The sequences that the model extends in the next step."""

    @abstractmethod
    def advance(self, continuations: Continuations) -> Tensor | None:
        """Extend the sequences of every sentence by one token.

        Args:
            continuations: the tokens that may follow the K alive rows.

        Returns:
            The index of the row that each new row continues, as ``State.select`` expects it:
            [B, K'] int64. None if every row continues itself.
        """

    @abstractmethod
    def is_done(self) -> Tensor:
        """Return a mask of the sentences that need no further step: [B] bool."""

    @abstractmethod
    def select_sentences(self, sentences: Tensor) -> SearchState:
        """Return the state of the given sentences: indices [B'] int64."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first."""


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


@dataclass(frozen=True)
class Continuations:
    """The tokens that may follow each row."""

    log_probabilities: Tensor
    """[B, K, V] float32, from the model; minus infinity for tokens that may not follow, such as PAD
    and BOS."""

    @classmethod
    def from_logits(cls, logits: Tensor) -> Continuations:
        """Normalise the model's logits: [B, K, V] of any floating dtype."""
        # On a CPU log_softmax takes half the time of logsumexp, though it writes all values.
        log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
        log_probabilities[..., PAD : BOS + 1 : BOS - PAD] = float("-inf")
        return cls(log_probabilities)

    def likeliest(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens of each row.

        Args:
            count: number of tokens per row.

        Returns:
            float32 log-probabilities and int64 tokens, both [B, K, C]: at least the `count`
            likeliest tokens, or the whole vocabulary. Tokens ascend, so that a caller that takes
            the first of equals takes the lowest id. A token that may not follow is replaced by UNK
            with minus infinity.
        """
        values, tokens = top(self.log_probabilities, min(count, self.log_probabilities.size(-1)))
        tokens, order = tokens.sort(-1)  # [B, K, C]
        values = values.gather(-1, order)
        return values, tokens.masked_fill(values.isneginf(), UNK)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of one token per row, [B, K'] float32.

        Args:
            tokens: [B, K'] int64; K' equals K unless K is 1.
        """
        log_probabilities = self.log_probabilities.expand(-1, tokens.size(1), -1)
        return log_probabilities.gather(-1, tokens[..., None])[..., 0]


BLOCK = 64
"""Width of the blocks of which :func:`top` first takes the maxima: a few of the widest vectors."""


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values along the last dimension and their indices, like ``topk``.

    The largest values lie in the blocks with the largest maxima, so only these blocks are searched.
    On a CPU this takes a quarter of the time of ``topk``. The index of a value of minus infinity
    may be beyond the end of the dimension.
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
    largest, at = blocks[rows].view(*values.shape[:-1], -1).topk(count)
    return largest, chosen.gather(-1, at // BLOCK) * BLOCK + at % BLOCK

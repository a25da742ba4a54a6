"""The contract of a search strategy, and the loop that all strategies share.

Tests check three laws for every registered strategy. A sentence gets the same hypotheses in a batch
as alone. The log-probability of a hypothesis is the model's log-probability of its tokens. An
n-best list has n distinct hypotheses where the model can produce n.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.lazy import torch
from nmt.recipe.registry import Registry
from nmt.search.constraints import Constraint
from nmt.search.hypotheses import Continuations, Hypotheses, Hypothesis

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """A search strategy: a set of settings without state between calls."""

    registry: ClassVar[Registry[Strategy]]
    count_key: ClassVar[str | None] = None
    """Name of the setting for the number of hypotheses, if the strategy has one."""
    places_phrases: ClassVar[bool] = False
    """Whether the strategy finds outputs with required phrases."""
    constraints: ClassVar[tuple[Constraint, ...]] = ()
    """Constraints that belong to the strategy, besides those of the configuration."""
    coverage_penalty: ClassVar[float] = 0.0
    """Coverage penalty of the strategy where the configuration has none; only for models with
    attention."""

    name: str = ""
    """Name of the search strategy whose values the other keys override."""

    @property
    @abstractmethod
    def rows_per_sentence(self) -> int:
        """Maximum number of rows per sentence in one step of the model."""

    @property
    def max_hypotheses(self) -> int:
        """Maximum length of an n-best list that the strategy can guarantee.

        The default is `rows_per_sentence`; a strategy that finds more or fewer overrides it.
        """
        return self.rows_per_sentence

    @abstractmethod
    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return the state before the first step; arguments as for :meth:`search`."""

    def open_with(
        self, source: Tensor, max_lengths: Tensor, count: int, phrases: Tensor
    ) -> SearchState:
        """Return the state before the first step of a search with required phrases.

        Arguments as for :meth:`search`.

        Raises:
            NmtError: the strategy cannot place phrases.
        """
        raise NmtError(self.refusal_of_phrases)

    @property
    def refusal_of_phrases(self) -> str:
        """The message about phrases that the strategy cannot place."""
        return (
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
                `max_hypotheses`, if the model can produce so many, and more where it meets more. A
                count above 1 takes more steps, because the best hypothesis is known first.

        Returns:
            For each sentence at least one hypothesis, best first.

        Raises:
            ValueError: a length or the count is below 1.
            NmtError: the model's logits are NaN, or the strategy cannot place phrases.
            NoOutputError: the constraints leave a sentence no output.
        """
        longest = check_lengths(max_lengths, count)
        if phrases is None:
            search_state = self.open(source, max_lengths, count)
        else:
            search_state = self.open_with(source, max_lengths, count, phrases)
        # The batch shrinks during the search; these indices lead back to the caller's sentences.
        sentences = torch.arange(len(source), device=source.device)
        batch = _Unfinished(sentences, max_lengths, search_state, constraints)
        results: dict[int, list[Hypothesis]] = {}
        state = model.start(source)
        # The only loop over target positions; all strategies share it.
        for step in range(1, longest + 1):
            last = batch.search_state.alive.tokens[:, :, -1]  # [B, K], the model's next input
            # Nothing reads the model's output for a row that has ended.
            last = last.masked_fill((last == EOS) | (last == PAD), UNK)
            logits = model.step(last, state)
            parents = batch.advance(logits)
            done = batch.done(step)
            if done is not None:
                results.update(batch.hypotheses(done.nonzero()[:, 0]))
                if len(results) == len(source):
                    break
                staying = (~done).nonzero()[:, 0]
                batch = batch.select_sentences(staying)
                # Finished sentences leave the batch, so late steps compute only the long ones.
                parents = (_every_row(logits) if parents is None else parents)[staying]
            if parents is not None:
                state.select(parents)
        for sentence in results:
            # Silence would lose a line of the output.
            if not results[sentence]:
                raise NoOutputError(sentence)
        return [results[sentence] for sentence in range(len(source))]


class NoOutputError(NmtError):
    """The constraints of a search leave a sentence no output.

    Attributes:
        sentence: position of the sentence in the batch.
    """

    def __init__(self, sentence: int) -> None:
        super().__init__(
            "search.constraints and the request leave no translation at all; loosen one of them"
        )
        self.sentence = sentence


def check_lengths(max_lengths: Tensor, count: int) -> int:
    """Return the largest of the `max_lengths` [B].

    Raises:
        ValueError: a length or the count is below 1.
    """
    shortest, longest = torch.stack(max_lengths.aminmax()).tolist()
    if shortest < 1:
        raise ValueError(f"a max_length must be at least 1, not {shortest}")
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return int(longest)


def diverged(step: int) -> NmtError:
    """Return the error for logits that are NaN in a step."""
    return NmtError(
        f"step {step} of the search: the model's logits are not numbers; "
        "it has diverged: use another checkpoint"
    )


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
class _Unfinished:
    """The sentences of a batch whose search is not finished."""

    sentences: Tensor
    """Their indices in the batch, [B] int64."""
    max_lengths: Tensor
    search_state: SearchState
    constraints: Sequence[Constraint]

    def advance(self, logits: Tensor) -> Tensor | None:
        """Extend all sequences by a token that the constraints allow; return their parents."""
        continuations = Continuations.from_logits(logits)
        for constraint in self.constraints:
            constraint.mask_continuations(
                continuations.log_probabilities, self.search_state.alive.tokens
            )
        return self.search_state.advance(continuations)

    def done(self, step: int) -> Tensor | None:
        """Return a mask of the sentences that are finished, [B] bool, or None if there are none.

        Raises:
            NmtError: the logits of the step were NaN.
        """
        done = self.search_state.is_done() | (self.max_lengths <= step)
        is_nan = self.search_state.alive.log_probabilities.isnan().any(1)
        # Both numbers in one transfer: each wait for a GPU costs as much as a small step.
        num_done, num_nan = torch.stack((done, is_nan)).sum(1).tolist()  # waits for the device
        if num_nan:
            # Without this check a diverged model would write empty lines without a word.
            raise diverged(step)
        return done if num_done else None

    def hypotheses(self, indices: Tensor) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Return the index and the hypotheses of some of the sentences."""
        hypotheses = self.search_state.select_sentences(indices).hypotheses()
        return zip(self.sentences[indices].tolist(), hypotheses, strict=True)

    def select_sentences(self, sentences: Tensor) -> _Unfinished:
        """Return some of the sentences: indices [B'] int64."""
        return _Unfinished(
            self.sentences[sentences],
            self.max_lengths[sentences],
            self.search_state.select_sentences(sentences),
            [constraint.select_sentences(sentences) for constraint in self.constraints],
        )


def _every_row(logits: Tensor) -> Tensor:
    """Return the index of each row of the logits [B, K, V], as ``State.select`` expects it."""
    shape = logits.shape[:2]
    return torch.arange(shape.numel(), device=logits.device).view(shape)

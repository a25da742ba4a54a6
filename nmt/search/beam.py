"""Beam search, by default like the code of the Transformer paper (Tensor2Tensor).

The candidates of a sentence are the best 2 x beam continuations of its alive rows, so that at least
`beam` candidates do not end. The best candidates that do not end become the alive rows. Candidates
that end compete with earlier finished hypotheses for the places of the finished set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from nmt.data.vocabulary import EOS, PAD
from nmt.lazy import torch
from nmt.search.base import SearchState, Strategy, strategies
from nmt.search.hypotheses import Continuations, Hypotheses, Hypothesis, best_first
from nmt.search.ranking import LengthPenalty, length_penalties

if TYPE_CHECKING:
    from torch import Tensor

Self = TypeVar("Self", bound="BeamState")


Stop = Literal["first_beam", "optimistic", "all_finished", "current_length", "shrinking_beam"]


@strategies.register("beam")
@dataclass(frozen=True, kw_only=True)
class Beam(Strategy):
    """Beam search. Of equal scores, the sequence found first ranks higher."""

    count_key: ClassVar[str | None] = "beam"

    beam: int = 4
    """Beam size: alive sequences per sentence, and the most hypotheses returned; the paper's is
    4."""

    length_penalty: LengthPenalty = length_penalties["gnmt"]
    """Length penalty, a divisor of the log-probability; the paper's is gnmt with alpha 0.6."""

    stop: Stop = "first_beam"
    """When the search of a sentence stops. `first_beam` (fairseq's and CTranslate2's): when `beam`
    hypotheses are finished; only the best `beam` candidates of a step may end. `optimistic` (the
    paper's): as many hypotheses are finished as requested, and the best one scores at least as high
    as the best alive sequence would if it reached the maximum length at no cost. `all_finished`:
    the finished set is full, and each of its hypotheses meets the same bound. The best hypothesis
    is the same, the rest of the list is better. `current_length` (Hugging Face's): as `first_beam`,
    and each finished hypothesis scores at least as high as the best alive sequence at its present
    length. `shrinking_beam` (Marian's): each finished hypothesis makes the beam smaller by one,
    until the beam is empty."""

    pruning: float | None = None
    """Prunes alive sequences whose log-probability is more than this below the best alive sequence
    of the sentence. Pruning never removes sequences that an n-best list needs."""

    pruning_tokens: float | None = None
    """Prunes tokens whose log-probability is more than this below the likeliest token after the
    same sequence (Wu et al. 2016, section 7: 3)."""

    pruning_finished: float | None = None
    """Prunes alive sequences whose score is more than this below the best finished hypothesis of
    the sentence (Wu et al. 2016, section 7: 3)."""

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be at least 1, not {self.beam}")
        for key in ("pruning", "pruning_tokens", "pruning_finished"):
            if (most := getattr(self, key)) is not None and not most >= 0:
                raise ValueError(f"{key} must be at least 0, not {most:g}")

    @property
    def rows_per_sentence(self) -> int:
        """Beam size."""
        return self.beam

    def open(self, source: Tensor, max_lengths: Tensor, count: int) -> SearchState:
        """Return one empty sequence per sentence, and nothing finished."""
        # One row, not `beam` equal ones: equal rows would find the same candidates.
        return BeamState.before_the_first_step(self, source, max_lengths, count)


@dataclass
class BeamState(SearchState):
    """Alive and finished sequences of each sentence, the finished ones best first.

    Subclasses override the methods that find candidates and put them in order.
    """

    strategy: Beam
    alive: Hypotheses  # [B, K]; K is the beam size, or less if there are fewer sequences
    finished: Hypotheses  # [B, max(beam, count)]
    final_divisors: Tensor  # [B], the length penalty at the maximum length
    count: int  # requested hypotheses

    @classmethod
    def before_the_first_step(
        cls: type[Self],
        strategy: Beam,
        source: Tensor,
        max_lengths: Tensor,
        count: int,
        **fields: Any,
    ) -> Self:
        """Return the initial state; `fields` are the fields of a subclass."""
        # A requested list may be longer than the beam.
        num_finished = max(strategy.beam, count)
        nothing = torch.full((len(source), num_finished), float("-inf"), device=source.device)
        return cls(
            strategy=strategy,
            alive=Hypotheses.open(source),
            finished=Hypotheses(source.new_full((*nothing.shape, 1), PAD), nothing, nothing),
            final_divisors=strategy.length_penalty.divisor(max_lengths),
            count=count,
            **fields,
        )

    def advance(self, continuations: Continuations) -> Tensor:
        """Turn candidates into alive or finished sequences; return the parent rows."""
        beam, (sentences, rows, _) = self.strategy.beam, continuations.log_probabilities.shape
        candidates, parents = self._candidates(continuations)  # [B, at most 2 beam]
        is_eos = candidates.tokens[:, :, -1] == EOS
        # 2 * beam candidates as in tensor2tensor: even if `beam` of them end, `beam` remain.
        num_alive = min(beam, parents.size(1) - rows)  # at most one candidate per row ends
        chosen = self._going_on(candidates, is_eos)[:, :num_alive]
        self.alive = candidates.take(chosen)
        if self.strategy.stop in ("first_beam", "current_length"):
            # fairseq ends a hypothesis only if it is among the first `beam` candidates.
            is_eos[:, beam:] = False
        elif self.strategy.stop == "shrinking_beam":
            # Places of the finished set that are still empty are the size of the beam that is left.
            places = self.finished.scores.isneginf().sum(1, keepdim=True).clamp(max=beam)
            self.alive = self.alive.without(chosen >= places)
            is_eos &= torch.arange(is_eos.size(1), device=is_eos.device) < places
        self._finish(candidates, is_eos)
        self._prune()
        # State.select takes rows of the whole batch; parents are numbered within their sentence.
        first_rows = torch.arange(0, sentences * rows, rows, device=parents.device)
        return first_rows[:, None] + parents.gather(1, chosen)

    def _candidates(self, continuations: Continuations) -> tuple[Hypotheses, Tensor]:
        """Return the best continuations, best first, and the rows [B, n] that they continue."""
        _, rows, vocabulary = continuations.log_probabilities.shape
        wanted = 2 * self.strategy.beam
        values, tokens = self._likeliest(continuations, wanted)  # [B, K, C]
        # Sums of log-probabilities, without the length penalty: all candidates of a step are
        # equally long, so a divisor would not change their order.
        values = self.alive.log_probabilities[..., None] + values
        order = self._best_first(values, tokens)
        best = order[:, : min(wanted, rows * (vocabulary - 2))]  # PAD and BOS never follow
        # [B, K, C] is flattened row by row.
        parents = best // values.size(-1)
        log_probabilities = values.flatten(1).gather(1, best)
        # The length of a candidate without BOS is the length of its parent with BOS.
        divisor = self._divisor(self.alive.length)
        candidates = self.alive.extend(
            tokens.flatten(1).gather(1, best),
            log_probabilities,
            # Wu et al. 2016, equation 14; the coverage penalty needs attention, so it comes after
            # the search.
            scores=log_probabilities / divisor,
            parents=parents,
        )
        return candidates, parents

    def _likeliest(self, continuations: Continuations, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and tokens, both [B, K, C], that may become candidates."""
        # The best 2 * beam of all rows are among the best 2 * beam of each row, so the sort that
        # follows sees some tokens and not the whole vocabulary.
        values, tokens = continuations.likeliest(count)
        if self.strategy.pruning_tokens is not None:
            # Unlike in the paper, each row keeps `count` tokens: the only row of the first step
            # must fill a list.
            best = values.topk(min(self._least_tokens, values.size(-1))).values
            least = torch.minimum(best[..., :1] - self.strategy.pruning_tokens, best[..., -1:])
            values = values.masked_fill(values < least, float("-inf"))
        return values, tokens

    @property
    def _least_tokens(self) -> int:
        """Number of tokens per row that `pruning_tokens` always keeps."""
        return self.count

    def _best_first(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Return the order [B, K C] in which continuations [B, K, C] become candidates."""
        # Stable, so that equal scores rank alike in any batch and on any device.
        return values.flatten(1).argsort(dim=1, descending=True, stable=True)

    def _going_on(self, candidates: Hypotheses, is_eos: Tensor) -> Tensor:
        """Return the order [B, n] in which candidates become alive; ending candidates come last."""
        return is_eos.int().argsort(dim=1, stable=True)

    def _prune(self) -> None:
        """Prune alive sequences too far below the best alive or the best finished sequence."""
        alive, strategy = self.alive, self.strategy
        if strategy.pruning is None and strategy.pruning_finished is None:
            return
        # The argsort of an argsort: the rank of each sequence.
        rank = alive.scores.argsort(dim=1, descending=True, stable=True).argsort(1)
        # Pruning may shorten a search, but never an n-best list.
        wanted = self.count - (self.finished.scores > float("-inf")).sum(1, keepdim=True)
        is_spare = rank >= wanted
        if strategy.pruning is not None:
            best = alive.log_probabilities.amax(1, keepdim=True)
            alive = alive.without(is_spare & (alive.log_probabilities < best - strategy.pruning))
        if strategy.pruning_finished is not None:
            # Minus infinity while nothing is finished, which prunes nothing.
            best = self.finished.scores[:, :1]
            alive = alive.without(is_spare & (alive.scores < best - strategy.pruning_finished))
        self.alive = alive

    def _finish(self, candidates: Hypotheses, is_eos: Tensor) -> None:
        """Merge the candidates that end into the finished set."""
        # Finished sequences are padded, so that they have the length of the new candidates.
        old = self.finished.padded()
        if not is_eos.is_cuda and not is_eos.any():  # on a GPU the check would synchronise
            self.finished = old
            return
        new = replace(candidates, scores=candidates.scores.masked_fill(~is_eos, float("-inf")))
        both = replace(
            old,
            tokens=torch.cat((old.tokens, new.tokens), dim=1),
            log_probabilities=torch.cat((old.log_probabilities, new.log_probabilities), dim=1),
            scores=torch.cat((old.scores, new.scores), dim=1),
        )
        best = both.scores.argsort(dim=1, descending=True, stable=True)
        self.finished = both.take(best[:, : old.scores.size(1)])

    def _divisor(self, length: int | Tensor) -> float | Tensor:
        """Return the length penalty of hypotheses of a number of tokens."""
        penalty = self.strategy.length_penalty
        if isinstance(length, int):
            return _divisor(penalty, length)
        divisor: Tensor = penalty.divisor(length)  # [1]; a GPU is not waited for
        return divisor

    def is_done(self) -> Tensor:
        """Return the sentences that meet the strategy's stop criterion: [B] bool."""
        best = self.alive.log_probabilities.amax(1)  # minus infinity where nothing is alive
        # Finished hypotheses are sorted, so the last place is filled last.
        if self.strategy.stop in ("first_beam", "shrinking_beam"):
            return best.isneginf() | (self.finished.scores[:, -1] > float("-inf"))
        # Log-probabilities only fall and divisors only rise: no alive sequence can end above this.
        bound = best / self.final_divisors
        if self.strategy.stop == "current_length":
            # BOS does not count.
            bound = best / self._divisor(self.alive.length - 1)
        # optimistic, as the paper's code stops, asks for the best hypothesis alone.
        deciding = 0 if self.strategy.stop == "optimistic" else -1
        is_decided = self.finished.scores[:, deciding] >= bound
        if self.count == 1:
            return is_decided
        # A short list is complete where nothing is left that could end.
        return is_decided & (best.isneginf() | ~self.finished.scores[:, self.count - 1].isneginf())

    def select_sentences(self: Self, sentences: Tensor) -> Self:
        """Return the state of the given sentences."""
        return replace(
            self,
            alive=self.alive.select_sentences(sentences),
            finished=self.finished.select_sentences(sentences),
            final_divisors=self.final_divisors[sentences],
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return finished hypotheses of each sentence; if too few, the alive ones as well."""
        pairs = zip(self.finished.hypotheses(), self.alive.hypotheses(), strict=True)
        most = self.finished.scores.size(1)
        # Alive sequences stand in where too few ended before the maximum length.
        return [best_first(finished + alive, self.count)[:most] for finished, alive in pairs]


@lru_cache(maxsize=4096)  # clients of a server choose penalties
def _divisor(penalty: LengthPenalty, length: int) -> float:
    return float(penalty.divisor(torch.tensor(length)))

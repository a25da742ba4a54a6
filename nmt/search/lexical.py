"""Required phrases: dynamic beam allocation (Post and Vilar 2018).

*Banks* divide the beam by the number of required tokens that a sequence contains. Each bank has a
share, so likelier sequences with fewer required tokens do not displace sequences with more. Every
sequence may continue with its missing tokens, however unlikely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.lazy import F, torch
from nmt.search.base import SearchState, Strategy, strategies
from nmt.search.beam import Beam, BeamState
from nmt.search.constraints import NEVER
from nmt.search.greedy import Greedy
from nmt.search.hypotheses import Continuations, Hypotheses, Hypothesis

if TYPE_CHECKING:
    from torch import Tensor

LEAST_BEAM = 8
"""Beam of a search that places terms: with two terms of a sentence, banks of 4 hypotheses lose 1.9
BLEU, which 12 do not improve (docs/results/quality.md)."""


@strategies.register("lexical_beam")
@dataclass(frozen=True, kw_only=True)
class LexicalBeam(Beam):
    """Beam search with required phrases; a sentence without phrases is searched as by `beam`.

    If the beam is larger than the number of tokens of the phrases, each step makes progress.
    """

    places_phrases: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("pruning", "pruning_tokens", "pruning_finished"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} would give up what phrases make unlikely; use none")

    def open_with(
        self, source: Tensor, max_lengths: Tensor, count: int, phrases: Tensor
    ) -> SearchState:
        """Return one empty sequence per sentence, and the phrases."""
        return LexicalBeamState.before_the_first_step(
            self, source, max_lengths, count, phrases=phrases
        )


def placing_phrases(strategy: Strategy) -> Strategy:
    """Return the strategy that searches like another one, with required phrases.

    A plain beam becomes one with banks, and greedy search the default one, at least
    `LEAST_BEAM` wide.

    Raises:
        NmtError: there is none.
    """
    if strategy.places_phrases:
        return strategy
    if type(strategy) is Greedy:
        return LexicalBeam(name="lexical_beam", beam=LEAST_BEAM)
    if type(strategy) is not Beam:  # a subclass searches otherwise
        raise NmtError(strategy.refusal_of_phrases)
    return LexicalBeam(
        name="lexical_beam",
        beam=max(strategy.beam, LEAST_BEAM),
        length_penalty=strategy.length_penalty,
        stop=strategy.stop,
    )


@dataclass
class LexicalBeamState(BeamState):
    """State of a beam with banks."""

    phrases: Tensor  # [B, P, L] int64, padded on the right; all PAD where there is no phrase

    def _likeliest(self, continuations: Continuations, count: int) -> tuple[Tensor, Tensor]:
        """Return the candidates of a beam without early EOS, and the missing tokens."""
        values, tokens = super()._likeliest(continuations, count)  # [B, K, C]
        _, is_whole, lacking = phrase_progress(self.alive.tokens, self.phrases)
        ends_early = (tokens == EOS) & ~is_whole[..., None]
        is_known = (tokens[:, :, None] == lacking[..., None]).any(-1)  # [B, K, P]
        # Two phrases may lack the same token, which must be one candidate.
        is_known |= (lacking[..., None] == lacking[:, :, None]).tril(-1).any(-1)
        may_follow = (lacking != PAD) & ~is_known
        log_probs = continuations.log_probabilities.gather(-1, lacking)
        return (
            torch.cat(
                (values.masked_fill(ends_early, NEVER), log_probs.where(may_follow, NEVER)), -1
            ),
            torch.cat((tokens, lacking.where(may_follow, UNK)), dim=-1),
        )

    def _best_first(self, values: Tensor, tokens: Tensor) -> Tensor:
        sequences = self.alive.tokens[:, :, None].expand(-1, -1, tokens.size(-1), -1)
        sequences = torch.cat((sequences, tokens[..., None]), dim=-1).flatten(1, 2)
        return self._shared_out(values.flatten(1), sequences, 2 * self.strategy.beam)

    def _going_on(self, candidates: Hypotheses, is_eos: Tensor) -> Tensor:
        values = candidates.log_probabilities.masked_fill(is_eos, NEVER)
        order = self._shared_out(values, candidates.tokens, self.strategy.beam)
        # A candidate that continues may be as unlikely as NEVER and stand among ending candidates.
        return order.gather(1, super()._going_on(candidates, is_eos.gather(1, order)))

    def _shared_out(self, values: Tensor, sequences: Tensor, count: int) -> Tensor:
        """Return the order [B, n] in which sequences [B, n, T] get places.

        First come the best sequences of each bank, up to the bank's share, the fullest bank first;
        then all other sequences.
        """
        order = values.argsort(dim=1, descending=True, stable=True)
        banks = phrase_progress(sequences, self.phrases)[0].gather(1, order)
        is_in_bank = F.one_hot(banks, self.phrases[0].numel() + 1)  # [B, n, banks]
        rank = is_in_bank.cumsum(1).gather(-1, banks[..., None])[..., 0]  # within the bank, from 1
        most = (self.phrases != PAD).sum((1, 2))[:, None]  # required tokens
        # A bank for each number of required tokens met so far, with equally many places: without
        # banks the likely sequences, which lack the phrases, would fill the beam.
        has_place = rank <= (count // (most + 1)).clamp(min=1)
        # Sequences that may not follow take no place from the rest.
        has_place &= values.gather(1, order) > NEVER
        # The fullest bank has turn 0.
        turn = (most - banks).where(has_place, most + 1)
        return order.gather(1, turn.argsort(dim=1, stable=True))

    def select_sentences(self, sentences: Tensor) -> LexicalBeamState:
        """Return the state of the given sentences, with their phrases."""
        search_state = super().select_sentences(sentences)
        search_state.phrases = self.phrases[sentences]
        return search_state

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first.

        A cut hypothesis counts if it contains all phrases. If no hypothesis finished, the cut
        hypotheses with the most required tokens count.
        """
        banks, is_whole, _ = phrase_progress(self.alive.tokens, self.phrases)
        fullest = banks.where(self.alive.scores > NEVER, -1).amax(1, keepdim=True)
        none_ended = self.finished.scores[:, :1].isneginf()
        # A cut output without its phrases would look complete to the caller, so it counts only as a
        # last resort.
        is_kept = is_whole | (none_ended & (banks == fullest))
        return BeamState.hypotheses(replace(self, alive=self.alive.without(~is_kept)))


def phrase_progress(sequences: Tensor, phrases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Measure the progress of each sequence in the required phrases of its sentence.

    Args:
        sequences: [B, N, T] int64.
        phrases: [B, P, L] int64, padded on the right. A phrase of padding alone counts as
            contained.

    Returns:
        Three tensors: the number of required tokens that the sequence contains, [B, N], which are
        the tokens of complete phrases and of the longest prefix of a phrase at the end of the
        sequence; whether the sequence contains all phrases, [B, N]; and for each phrase its next
        missing token, [B, N, P], PAD if the sequence contains the phrase.
    """
    lengths, width = (phrases != PAD).sum(-1), phrases.size(-1)  # [B, P]
    total = sequences.size(-1)
    padded = F.pad(sequences, (0, width), value=PAD)
    held = torch.ones((), dtype=torch.bool, device=phrases.device)
    # Token by token, several times faster than all tokens of all windows at once.
    for at in range(width):
        token = phrases[:, None, :, at, None]  # [B, 1, P, 1]
        held = held & ((padded[:, :, None, at : at + total] == token) | (token == PAD))
    appears = held.any(-1)  # [B, N, P]
    # Only the last windows, W of them, and the empty one may hold the beginning of a phrase.
    first = max(0, total - width + 1)
    starts = torch.arange(first, total + 1, device=phrases.device)[:, None]
    # Tokens that are not written yet agree with every phrase.
    beyond = starts + torch.arange(width, device=phrases.device) >= total  # [W, L]
    wanted = phrases[:, None, :, None]  # [B, 1, P, 1, L]
    same = padded[..., first:].unfold(-1, width, 1)[:, :, None] == wanted  # [B, N, P, W, L]
    begun = (same | beyond).all(-1)  # prefixes at the end; always the empty one
    reach = (begun * (total - starts[:, 0])).amax(-1)  # [B, N, P], length of the longest prefix
    # A phrase that appeared is done, even if the output ends with its beginning again.
    reach = reach.masked_fill(appears, 0).clamp(max=width - 1)
    count = (appears * lengths[:, None]).sum(-1) + reach.amax(-1)
    following = wanted[:, :, :, 0].expand(-1, sequences.size(1), -1, -1)
    following = following.gather(-1, reach[..., None])[..., 0].masked_fill(appears, PAD)
    return count, appears.all(-1), following

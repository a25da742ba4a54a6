"""Phrases that must appear: dynamic beam allocation (Post and Vilar 2018).

The places of the beam are divided among *banks*: the sequences that hold none of the tokens that
must appear, those that hold one, and so on. Each bank has its share, so that sequences on the way
to holding all are not driven out by likelier ones that hold fewer; and every sequence may go on
with what it still lacks, however unlikely. How much a sequence holds is a function of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.search.base import Continuations, Hypotheses, Hypothesis, SearchState, strategies
from nmt.search.beam import Beam, BeamState
from nmt.search.constraints import NEVER


@strategies.register("lexical_beam")
@dataclass(frozen=True, kw_only=True)
class LexicalBeam(Beam):
    """A beam in which phrases can be required; a sentence without any is searched as by `beam`.

    With more places in the beam than the phrases have tokens, each step brings one nearer.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("pruning", "pruning_tokens", "pruning_finished"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} would give up what phrases make unlikely; use none")

    def open_with(
        self, source: Tensor, max_lengths: Tensor, count: int, phrases: Tensor
    ) -> SearchState:
        """One empty sequence per sentence, which holds nothing yet."""
        return LexicalBeamState.before_the_first_step(
            self, source, max_lengths, count, phrases=phrases
        )


@dataclass
class LexicalBeamState(BeamState):
    """The frontier of a beam with banks."""

    phrases: Tensor  # [B, P, L] int64, PAD after the tokens of each, and where there is none

    def _likeliest(self, continuations: Continuations, count: int) -> tuple[Tensor, Tensor]:
        """What a beam considers, without ends that come too early, and what is still lacking."""
        values, tokens = super()._likeliest(continuations, count)  # [B, K, C]
        _, is_whole, lacking = phrase_progress(self.alive.tokens, self.phrases)
        ends_early = (tokens == EOS) & ~is_whole[..., None]
        is_known = (tokens[:, :, None] == lacking[..., None]).any(-1)  # [B, K, P]
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
        return self._shared_out(values, candidates.tokens, self.strategy.beam)

    def _shared_out(self, values: Tensor, sequences: Tensor, places: int) -> Tensor:
        """The order [B, n] in which sequences [B, n, T] get places.

        First the best of each bank, the fullest bank first, as many as are its share; then others.
        """
        order = values.argsort(dim=1, descending=True, stable=True)
        banks = phrase_progress(sequences, self.phrases)[0].gather(1, order)
        rank = (banks[:, :, None] == banks[:, None]).tril(-1).sum(-1)  # in its bank
        most = (self.phrases != PAD).sum((1, 2))[:, None]  # of the tokens to be held
        has_place = rank < (places // (most + 1)).clamp(min=1)
        has_place &= values.gather(1, order) > NEVER
        turn = (most - banks).where(has_place, most + 1)
        return order.gather(1, turn.argsort(dim=1, stable=True))

    def select_sentences(self, sentences: Tensor) -> LexicalBeamState:
        """Their sequences, and what these must hold."""
        search_state = super().select_sentences(sentences)
        search_state.phrases = self.phrases[sentences]
        return search_state

    def hypotheses(self) -> list[list[Hypothesis]]:
        """What has ended; of what was cut, what holds all phrases, or the most if none ended."""
        banks, is_whole, _ = phrase_progress(self.alive.tokens, self.phrases)
        fullest = banks.where(self.alive.scores > NEVER, -1).amax(1, keepdim=True)
        none_ended = self.finished.scores[:, :1].isneginf()
        is_kept = is_whole | (none_ended & (banks == fullest))
        return BeamState.hypotheses(replace(self, alive=self.alive.without(~is_kept)))


def phrase_progress(sequences: Tensor, phrases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How much of its sentence's phrases each sequence holds.

    Args:
        sequences: [B, N, T] int64.
        phrases: [B, P, L] int64, padded on the right; those that are padding alone count as held.

    Returns:
        The number of tokens [B, N] of the phrases that appear, and of one more of which the
        sequence ends with a beginning; whether all appear [B, N]; and for each phrase the token
        [B, N, P] that continues or begins it, PAD where it appears.
    """
    lengths, width = (phrases != PAD).sum(-1), phrases.size(-1)  # [B, P]
    total = sequences.size(-1)
    windows = F.pad(sequences, (0, width), value=PAD).unfold(-1, width, 1)  # [B, N, T + 1, L]
    places = torch.arange(total + 1, device=phrases.device)[:, None]
    beyond = places + torch.arange(width, device=phrases.device) >= total  # [T + 1, L]
    wanted = phrases[:, None, :, None]  # [B, 1, P, 1, L]
    same = windows[:, :, None] == wanted  # [B, N, P, T + 1, L]
    appears = (same | (wanted == PAD)).all(-1).any(-1)  # [B, N, P]
    begun = (same | beyond).all(-1)  # those that go over the end, the empty one at the end always
    reach = (begun * (total - places[:, 0])).amax(-1)  # [B, N, P], the longest beginning
    reach = reach.masked_fill(appears, 0).clamp(max=width - 1)
    count = (appears * lengths[:, None]).sum(-1) + reach.amax(-1)
    following = wanted[:, :, :, 0].expand(-1, sequences.size(1), -1, -1)
    following = following.gather(-1, reach[..., None])[..., 0].masked_fill(appears, PAD)
    return count, appears.all(-1), following

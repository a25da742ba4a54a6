"""Phrases to avoid: sequences of tokens that an output never contains."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import PAD
from nmt.search.constraints import NEVER, Constraint


@dataclass(frozen=True, kw_only=True, eq=False)
class Avoided(Constraint):
    """Phrases to avoid, for each sentence of a batch; other segmentations of their text may appear.

    The last token of a phrase is masked wherever its other tokens came before.
    """

    phrases: Tensor
    """[B, P, L] int64, padded on the right: P phrases of at most L tokens."""

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Mask the last tokens of the phrases that have begun."""
        *_, longest = self.phrases.shape
        lengths = (self.phrases != PAD).sum(-1, keepdim=True)  # [B, P, 1]
        at = torch.arange(longest, device=tokens.device) - longest + lengths  # from the right
        phrases = self.phrases.gather(-1, at.clamp(min=0)).where(at >= 0, PAD)
        before = F.pad(tokens, (longest, 0), value=PAD)[..., tokens.size(-1) + 1 :]  # [B, K, L - 1]
        begun = phrases[:, None, :, :-1]
        has_begun = ((begun == PAD) | (begun == before[:, :, None])).all(-1)  # [B, K, P]
        last = phrases[:, None, :, -1].where(has_begun, PAD)  # PAD is masked anyway
        logits.scatter_(-1, last, NEVER)

    def select_sentences(self, sentences: Tensor) -> Avoided:
        """Return the phrases of the given sentences."""
        return replace(self, phrases=self.phrases[sentences])

    def to_reduced_ids(self, tokens: Tensor) -> Avoided:
        """Return the phrases in reduced ids, without those that cannot appear any more."""
        reduced_ids = torch.searchsorted(tokens, self.phrases).clamp(max=len(tokens) - 1)
        can_appear = (tokens[reduced_ids] == self.phrases).all(-1, keepdim=True)
        return replace(self, phrases=reduced_ids.where(can_appear, PAD))

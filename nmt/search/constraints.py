"""Constraints: masks over the next tokens of a search.

A constraint is a function of the tokens alone, so it has no state to store or reorder. The
log-probabilities of the remaining tokens are the model's, not renormalised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.lazy import F, torch
from nmt.recipe.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

NEVER = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Constraint(ABC):
    """Mask of continuations. Wherever possible, at least one must remain, such as EOS."""

    registry: ClassVar[Registry[Constraint]]

    name: str = ""
    """Name of the constraint whose values the other keys override."""

    @abstractmethod
    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Set the logits of forbidden tokens to minus infinity.

        Args:
            logits: [B, K, V], of the next tokens; changed in place.
            tokens: [B, K, T] int64, the tokens so far, BOS first. Continuations of a row that
                contains EOS are ignored.
        """

    def select_sentences(self, sentences: Tensor) -> Constraint:
        """Return the constraint for the given sentences: indices [B'] int64.

        The default is the same constraint; one with values per sentence overrides this method.
        """
        return self

    def to_reduced_ids(self, tokens: Tensor) -> Constraint:
        """Return the constraint over reduced ids, which are indices into `tokens`.

        The default is the same constraint; one that holds token ids overrides this method. Special
        ids do not change.

        Args:
            tokens: [U] int64, ascending.
        """
        return self


constraints: Registry[Constraint] = Registry("constraint")

Constraint.registry = constraints


@constraints.register("forbidden")
@dataclass(frozen=True, kw_only=True)
class Forbidden(Constraint):
    """Tokens that never appear."""

    tokens: tuple[int, ...] = (UNK,)
    """Ids of the forbidden tokens; the unknown token by default."""

    def __post_init__(self) -> None:
        if EOS in self.tokens or min(self.tokens, default=0) < 0:
            raise ValueError(f"tokens are ids from 0 and not {EOS}, the end of the sentence")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Mask the same tokens at every step."""
        # A recipe may be used with a smaller vocabulary; an index outside would be an error of
        # torch.
        known = [token for token in self.tokens if token < logits.size(-1)]
        logits[..., known] = NEVER

    def to_reduced_ids(self, tokens: Tensor) -> Forbidden:
        """Return the constraint with the reduced ids of its tokens, without missing tokens."""
        reduced_ids = {token: reduced_id for reduced_id, token in enumerate(tokens.tolist())}
        return replace(
            self, tokens=tuple(reduced_ids[token] for token in self.tokens if token in reduced_ids)
        )


@constraints.register("min_length")
@dataclass(frozen=True, kw_only=True)
class MinLength(Constraint):
    """Minimum number of tokens before EOS, unless the maximum length is lower."""

    length: int = 1
    """Tokens without the end of the sentence."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, not {self.length}")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Mask EOS while there are too few tokens."""
        # BOS is no token of the output.
        if tokens.size(-1) - 1 < self.length:
            logits[..., EOS] = NEVER


@constraints.register("max_length")
@dataclass(frozen=True, kw_only=True)
class MaxLength(Constraint):
    """Maximum number of tokens before EOS, which then follows, as in fairseq.

    Hypotheses of this length end, and are ranked by their log-probability with EOS.
    """

    length: int = 200
    """Tokens without the end of the sentence."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, not {self.length}")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Mask all tokens but EOS where there are enough tokens."""
        if tokens.size(-1) - 1 >= self.length:
            logits[..., :EOS] = NEVER
            logits[..., EOS + 1 :] = NEVER


@constraints.register("no_repeat_ngram")
@dataclass(frozen=True, kw_only=True)
class NoRepeatNgram(Constraint):
    """No run of tokens appears twice in one output."""

    size: int = 3
    """Number of tokens in the run."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Mask the tokens that would repeat an n-gram."""
        body = tokens[..., 1:]  # without BOS
        # unfold refuses a window that is wider than the row.
        if body.size(-1) < self.size:
            return
        ngrams = body.unfold(-1, self.size, 1)  # [B, K, W, size]
        last = body[..., body.size(-1) - self.size + 1 :]  # [B, K, size - 1]
        # Compared anew at each step: a table of n-grams would have to follow the beam.
        seen = (ngrams[..., :-1] == last[..., None, :]).all(-1)  # [B, K, W]
        follows = ngrams[..., -1].where(seen, PAD)  # PAD is masked anyway
        logits.scatter_(-1, follows, NEVER)


# By identity: tensors have no single truth value for a generated comparison.
@dataclass(frozen=True, kw_only=True, eq=False)
class Prefixes(Constraint):
    """Forced prefixes of the outputs of a batch; other constraints apply only after them."""

    tokens: Tensor
    """[B, P] int64, padded on the right: one prefix per sentence."""

    others: Sequence[Constraint] = ()
    """Constraints on the tokens after the prefix."""

    num_given: int = 0
    """Number of tokens at the beginning of each prefix that have the probability 1: tags, which are
    an input of the model."""

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Mask all tokens but the next token of each prefix."""
        at = tokens.size(-1) - 1
        if at >= self.tokens.size(1):
            self._apply_others(logits, tokens)
            return
        wanted = self.tokens[:, at, None, None].expand(-1, logits.size(1), -1)  # [B, K, 1]
        # Read before the other constraints mask it: a forced token wins over them.
        is_forced, unmasked = wanted != PAD, logits.gather(-1, wanted)
        self._apply_others(logits, tokens)
        if at < self.num_given:
            unmasked = torch.zeros_like(unmasked)
        # After a prefix `wanted` is PAD, which is masked anyway.
        logits.masked_fill_(is_forced, NEVER).scatter_(-1, wanted, unmasked)

    def _apply_others(self, logits: Tensor, tokens: Tensor) -> None:
        for constraint in self.others:
            constraint.mask_continuations(logits, tokens)

    def select_sentences(self, sentences: Tensor) -> Prefixes:
        """Return the prefixes of the given sentences."""
        others = [constraint.select_sentences(sentences) for constraint in self.others]
        return replace(self, tokens=self.tokens[sentences], others=others)

    def to_reduced_ids(self, tokens: Tensor) -> Prefixes:
        """Return the prefixes in reduced ids; `tokens` must contain every prefix token."""
        others = [constraint.to_reduced_ids(tokens) for constraint in self.others]
        # Reduced ids are places in a sorted list, and special ids keep theirs.
        return replace(self, tokens=torch.searchsorted(tokens, self.tokens), others=others)


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
        # Aligned to the right, phrases of all lengths end in one column and are compared at once.
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
        """Return the phrases in reduced ids, without phrases that can no longer appear."""
        # searchsorted returns a place for missing tokens, too, so the next line compares the token
        # found there.
        reduced_ids = torch.searchsorted(tokens, self.phrases).clamp(max=len(tokens) - 1)
        can_appear = (tokens[reduced_ids] == self.phrases).all(-1, keepdim=True)
        return replace(self, phrases=reduced_ids.where(can_appear, PAD))

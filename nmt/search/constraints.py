"""Constraints: what may not follow the tokens so far.

A constraint is a function of the tokens alone, so that it has nothing to remember and nothing to
reorder. The log-probabilities of what remains are those that the model gives, not renormalised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.recipe.registry import Registry

NEVER = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Constraint(ABC):
    """Forbids continuations. It must leave at least one, such as the end, wherever it can."""

    registry: ClassVar[Registry[Constraint]]

    name: str = ""
    """Name of the constraint whose values the other keys override."""

    @abstractmethod
    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Sets the logits of forbidden tokens to minus infinity.

        Args:
            logits: [B, K, V] of what may follow; changed in place.
            tokens: [B, K, T] int64 so far, BOS first; whatever follows an EOS matters to nobody.
        """

    def select_sentences(self, sentences: Tensor) -> Constraint:
        """The constraint for some sentences [B'] int64: the same, unless it tells them apart."""
        return self

    def to_reduced_ids(self, tokens: Tensor) -> Constraint:
        """The constraint where ids are places in `tokens` [U] int64, which ascend.

        The same, unless it knows ids of its own; the special ones keep theirs.
        """
        return self


constraints: Registry[Constraint] = Registry("constraint")
Constraint.registry = constraints


@constraints.register("forbidden")
@dataclass(frozen=True, kw_only=True)
class Forbidden(Constraint):
    """Tokens that never appear."""

    tokens: tuple[int, ...] = (UNK,)
    """Their ids; the unknown token by default."""

    def __post_init__(self) -> None:
        if EOS in self.tokens or min(self.tokens, default=0) < 0:
            raise ValueError(f"tokens are ids from 0 and not {EOS}, the end of the sentence")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """The same ones at every step."""
        known = [token for token in self.tokens if token < logits.size(-1)]
        logits[..., known] = NEVER

    def to_reduced_ids(self, tokens: Tensor) -> Forbidden:
        """Those of the tokens that are there."""
        places = {token: place for place, token in enumerate(tokens.tolist())}
        return replace(self, tokens=tuple(places[it] for it in self.tokens if it in places))


@constraints.register("min_length")
@dataclass(frozen=True, kw_only=True)
class MinLength(Constraint):
    """No end before a number of tokens, unless the greatest length comes first."""

    length: int = 1
    """Tokens without the end of the sentence."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, not {self.length}")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """The end, while there are too few tokens."""
        if tokens.size(-1) - 1 < self.length:
            logits[..., EOS] = NEVER


@constraints.register("no_repeat_ngram")
@dataclass(frozen=True, kw_only=True)
class NoRepeatNgram(Constraint):
    """No run of tokens appears twice in one output."""

    size: int = 3
    """Tokens in such a run."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """What followed an earlier appearance of the last tokens."""
        body = tokens[..., 1:]  # without BOS
        if body.size(-1) < self.size:
            return
        ngrams = body.unfold(-1, self.size, 1)  # [B, K, W, size]
        last = body[..., body.size(-1) - self.size + 1 :]  # [B, K, size - 1]
        seen = (ngrams[..., :-1] == last[..., None, :]).all(-1)  # [B, K, W]
        follows = ngrams[..., -1].where(seen, PAD)  # which never follows anything
        logits.scatter_(-1, follows, NEVER)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefixes(Constraint):
    """The beginnings of the outputs of a batch, to which other constraints do not apply."""

    tokens: Tensor
    """[B, P] int64, padded on the right; each sentence has its own."""

    others: Sequence[Constraint] = ()
    """What may not follow once a beginning is over."""

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """All but the next token of each beginning."""
        given = logits.clone()
        for constraint in self.others:
            constraint.mask_continuations(logits, tokens)
        at = tokens.size(-1) - 1
        if at >= self.tokens.size(1):
            return
        wanted = self.tokens[:, at, None, None].expand(-1, logits.size(1), -1)  # [B, K, 1]
        forced = logits.new_full(logits.shape, NEVER).scatter(-1, wanted, given.gather(-1, wanted))
        logits.copy_(forced.where(wanted != PAD, logits))

    def select_sentences(self, sentences: Tensor) -> Prefixes:
        """The beginnings of some sentences."""
        return replace(self, tokens=self.tokens[sentences])

    def to_reduced_ids(self, tokens: Tensor) -> Prefixes:
        """The same beginnings, all of whose tokens are there."""
        others = [constraint.to_reduced_ids(tokens) for constraint in self.others]
        return replace(self, tokens=torch.searchsorted(tokens, self.tokens), others=others)

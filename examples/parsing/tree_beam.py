"""A plugin: beam search among the well-formed trees of a sentence, whose leaves are its words.

Every output is a tree by construction. A word is copied piece by piece from the source; a phrase
opens only before a word, and closes only if it has children and is the innermost open one; the end
comes after the last word, outside of all phrases. No more phrases open in a row than in any tree of
the training files, so that none opens for ever, and near the maximum length none that could not
close in time. Source and target share one SentencePiece model, in which brackets are
pieces (`sample.yaml`).

    plugins: [tree_beam]
    search:
      strategy: {name: tree_beam, beam: 4, subwords: work/sample/data-bin/subwords.model}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.models import Model
from nmt.search import Beam, Hypothesis
from nmt.search.base import strategies
from nmt.search.constraints import NEVER, Constraint

SPACE = "▁"

MOST_OPENED = 6
"""Phrases that open in a row: the most of any tree of wsj_0001 to wsj_0179."""


class Brackets(NamedTuple):
    """Pieces of a vocabulary that are brackets or begin a word."""

    closing: dict[int, int]
    """The id of ``NP)`` by the id of ``(NP``."""
    begins_word: frozenset[int]


class Place(NamedTuple):
    """A place in a tree that is being written."""

    consumed: int = 0
    """Source tokens that were copied."""
    open_: tuple[int, ...] = ()
    """Ids of the open brackets, the innermost last."""
    is_empty: bool = True
    """Whether the innermost phrase has no child yet."""
    opened: int = 0
    """Phrases that were opened since the last word."""


@cache
def brackets_of(path: str) -> Brackets:
    """Return the brackets of a SentencePiece model.

    Raises:
        NmtError: there is no such model, or it has no brackets.
    """
    try:
        model = SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError):  # SentencePiece raises either
        raise NmtError(
            f"tree_beam: no SentencePiece model {path!r}; set its key subwords"
        ) from None
    pieces = [model.id_to_piece(at) for at in range(model.get_piece_size())]
    ids = {piece: at for at, piece in enumerate(pieces)}
    closing = {
        at: ids[f"{SPACE}{piece[2:]})"]
        for piece, at in ids.items()
        if piece.startswith(f"{SPACE}(") and f"{SPACE}{piece[2:]})" in ids
    }
    if not closing:
        raise NmtError(f"{path}: no brackets among the pieces; see sample.yaml")
    begins = (at for at, piece in enumerate(pieces) if piece.startswith(SPACE))
    return Brackets(closing, frozenset(begins))


@dataclass(frozen=True, kw_only=True, eq=False)
class WellFormed(Constraint):
    """Only what continues a well-formed tree."""

    brackets: Brackets
    sources: Sequence[list[int]]
    """Tokens of each sentence, without EOS and PAD."""
    max_lengths: Sequence[int]
    places: Sequence[dict[tuple[int, ...], Place]] = field(default=())
    """For each sentence the place after each sequence of tokens, BOS first."""

    @classmethod
    def of(cls, source: Tensor, max_lengths: Tensor, brackets: Brackets) -> WellFormed:
        """Return the constraint for a batch: [B, S], [B]."""
        sources = [[token for token in row if token not in (EOS, PAD)] for row in source.tolist()]
        places: list[dict[tuple[int, ...], Place]] = [{(BOS,): Place()} for _ in sources]
        limits = max_lengths.tolist()
        return cls(brackets=brackets, sources=sources, max_lengths=limits, places=places)

    def mask_continuations(self, logits: Tensor, tokens: Tensor) -> None:
        """Leave only the tokens that :meth:`allowed` returns."""
        for sentence, rows in enumerate(tokens.tolist()):
            known = self.places[sentence]
            for row, sequence in enumerate(map(tuple, rows)):
                if sequence not in known and sequence[:-1] in known and sequence[-1] != EOS:
                    known[sequence] = self._after(known[sequence[:-1]], sequence[-1])
                if (place := known.get(sequence)) is None:  # it has ended
                    continue
                allowed = self.allowed(sentence, place, len(sequence) - 1)
                kept = logits[sentence, row, allowed]
                logits[sentence, row] = NEVER
                logits[sentence, row, allowed] = kept

    def _after(self, place: Place, token: int) -> Place:
        if token in self.brackets.closing:
            return Place(place.consumed, (*place.open_, token), opened=place.opened + 1)
        if place.open_ and token == self.brackets.closing[place.open_[-1]]:
            return Place(place.consumed, place.open_[:-1], is_empty=False)
        return Place(place.consumed + 1, place.open_, is_empty=False)

    def allowed(self, sentence: int, place: Place, length: int) -> list[int]:
        """Return the ids that may come next, after `length` tokens; always at least one."""
        source = self.sources[sentence]
        left = source[place.consumed :]
        if left and left[0] not in self.brackets.begins_word:
            return left[:1]  # within a word
        allowed = left[:1]
        if place.open_ and not place.is_empty:
            allowed.append(self.brackets.closing[place.open_[-1]])
        # All that is open must close, and a new phrase takes two tokens more.
        needed = len(left) + len(place.open_) + 1
        fits = length + needed + 2 <= self.max_lengths[sentence]
        if left and fits and place.opened < MOST_OPENED:
            allowed += self.brackets.closing
        return allowed or [EOS]

    def select_sentences(self, sentences: Tensor) -> WellFormed:
        """Return the constraint for some of the sentences."""
        kept = sentences.tolist()
        parts = (
            [some[at] for at in kept] for some in (self.sources, self.max_lengths, self.places)
        )
        sources, max_lengths, places = parts
        return replace(self, sources=sources, max_lengths=max_lengths, places=places)

    def to_reduced_ids(self, tokens: Tensor) -> WellFormed:
        """Refuse a shortlist, which could lack brackets."""
        raise NmtError("tree_beam: translate without a shortlist")


@strategies.register("tree_beam")
@dataclass(frozen=True, kw_only=True)
class TreeBeam(Beam):
    """Beam search among well-formed trees."""

    subwords: str = ""
    """SentencePiece model of both sides."""

    def search(
        self,
        model: Model,
        source: Tensor,
        max_lengths: Tensor,
        constraints: Sequence[Constraint] = (),
        phrases: Tensor | None = None,
        count: int = 1,
    ) -> list[list[Hypothesis]]:
        """Search as :class:`Beam` does, among the trees of each sentence."""
        trees = WellFormed.of(source, max_lengths, brackets_of(self.subwords))
        # No tree is shorter than its words and the end.
        shortest = torch.tensor([len(one) + 1 for one in trees.sources], device=max_lengths.device)
        trees = replace(trees, max_lengths=torch.maximum(max_lengths, shortest).tolist())
        rules = [*constraints, trees]
        return super().search(model, source, max_lengths, rules, phrases, count)

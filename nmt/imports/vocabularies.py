"""Reordering of a foreign vocabulary, so that its special tokens get this toolkit's ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.vocabulary import EXCLUDED, Vocabulary


@dataclass(frozen=True)
class ReorderedVocabulary:
    """The place of each foreign token in a vocabulary of this toolkit."""

    vocabulary: Vocabulary
    rows: tuple[int | None, ...]
    """The foreign id of each id; None where the foreign vocabulary has no such token."""
    excluded: tuple[int, ...]
    """Ids that the model does not predict: those without a foreign id, or with that of another."""

    @classmethod
    def of(
        cls,
        names: Mapping[int, str],
        size: int,
        pad: int | None,
        unk: int,
        start: int | None,
        end: int,
    ) -> ReorderedVocabulary:
        """Return the vocabulary in which special tokens come first and others keep their order.

        Args:
            names: the piece of each foreign id; an id without one gets a name of its own.
            size: number of foreign ids.
            pad: id of padding; None where padding has no id, or that of another special token.
            unk: id of unknown pieces.
            start: id that the decoder starts with; None on the source side.
            end: id of the end of a sentence.

        Raises:
            ValueError: an id is not one of the vocabulary, or two pieces have the same name.
        """
        special = (None if pad in (unk, start, end) else pad, unk, start, end)
        for token in special:
            if token is not None and not 0 <= token < size:
                raise ValueError(f"a special id is {token}, but there are {size} pieces")
        others = [token for token in range(size) if token not in special]
        pieces = [names.get(token, f"<unused {token}>") for token in others]
        rows = (*special, *others)
        excluded = tuple(
            token
            for token in range(len(special))
            if rows[token] is None or rows[token] in rows[token + 1 : len(special)]
        )
        return cls(Vocabulary.of(pieces), rows, excluded)

    def reorder(self, table: Tensor) -> Tensor:
        """Return the rows of a table [foreign ids, ...] in the order of the ids; others are 0."""
        index = torch.tensor([0 if row is None else row for row in self.rows])
        reordered = table[index]
        reordered[[token for token, row in enumerate(self.rows) if row is None]] = 0
        return reordered

    def reorder_bias(self, bias: Tensor) -> Tensor:
        """Return the biases of the output layer in the order of the ids."""
        reordered = self.reorder(bias)
        reordered[list(self.excluded)] = EXCLUDED
        return reordered

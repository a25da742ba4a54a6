"""What a decoder remembers between steps."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from nmt.models.attention import SelfAttention

ROOM = 8
"""Steps for which a cache makes room at a time."""


class BeamAncestry:
    """Which of the entries that the rows of its sentence have made each row descends from.

    Every step makes one entry for each row of a sentence. Where both of two rows continue the
    first row of the step before, row 0 descends from the entries 0 and 2 and row 1 from 0 and 3;
    nobody descends from entry 1.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._entries: Tensor | None = None  # [B, K, E] bool

    @property
    def mask(self) -> Tensor | None:
        """[B, 1, K, E], True at a row's own past; None where there never was another row."""
        assert self._entries is not None
        return None if self._entries.shape[2] == self._steps else self._entries[:, None]

    def grow(self, tokens: Tensor) -> None:
        """A step of the rows [B, K]: each descends from its own new entry."""
        self._steps += 1
        sentences, rows = tokens.shape
        own = torch.eye(rows, dtype=torch.bool, device=tokens.device).expand(sentences, -1, -1)
        self._entries = own if self._entries is None else torch.cat((self._entries, own), dim=-1)

    def select(self, rows: Tensor) -> None:
        """See :class:`nmt.models.base.State`."""
        if self._entries is not None:
            self._entries = self._entries.flatten(0, 1)[rows]


class Cache(ABC):
    """Keys and values of the steps so far, for one layer's self-attention.

    They are written into room that is made ahead, so that a step copies nothing but itself.
    """

    def __init__(self) -> None:
        self.entries = 0
        self._keys: Tensor | None = None  # [G, H, at least E, C], of groups of rows
        self._values: Tensor | None = None

    @abstractmethod
    def attend(self, attention: SelfAttention, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """What the states [B, K, D] of a step find in their past and themselves; [B, K, D]."""

    @abstractmethod
    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Keeps, repeats, reorders or drops rows.

        Args:
            rows: see :class:`nmt.models.base.State`.
            sentences: [B'], which old sentence each new one is; None where all stay what they are.
        """

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to and with the new ones [G, H, n, C]."""
        self._keys = _write(self._keys, keys, self.entries)
        self._values = _write(self._values, values, self.entries)
        self.entries += keys.shape[2]
        return self._keys[:, :, : self.entries], self._values[:, :, : self.entries]

    def _take(self, groups: Tensor) -> None:
        """Group i becomes what group ``groups[i]`` was."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, groups)
            self._values = self._values.index_select(0, groups)


class SharedCache(Cache):
    """One group a sentence: its rows attend together, each to the entries it descends from.

    Rows that follow others move nothing. For attention to which the order of keys is nothing.
    """

    def attend(self, attention: SelfAttention, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """K queries for each sentence."""
        queries, keys, values = attention.project(x)  # [B, H, K, C]
        attended: Tensor = attention.attend(queries, *self.extend(keys, values), ancestry.mask)
        return attended

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Follows the sentences alone."""
        if sentences is not None:
            self._take(sentences)


class OrderedCache(Cache):
    """One group a row, which holds the steps of its own past in their order."""

    def attend(self, attention: SelfAttention, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """One query for each row."""
        queries, keys, values = attention.project(x.flatten(0, 1)[:, None])  # [N, H, 1, C]
        attended: Tensor = attention.attend(queries, *self.extend(keys, values))  # [N, 1, D]
        return attended.view_as(x)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Copies the past of every row."""
        self._take(rows.reshape(-1))


def _write(stored: Tensor | None, new: Tensor, at: int) -> Tensor:
    """The stored entries with new ones written at their place, in more room where needed."""
    groups, heads, count, width = new.shape
    if stored is None or at + count > stored.shape[2]:
        roomy = new.new_empty(groups, heads, at + ROOM * count, width)
        if stored is not None:
            roomy[:, :, :at] = stored[:, :, :at]
        stored = roomy
    stored[:, :, at : at + count] = new
    return stored


class Memory:
    """Keys and values of the sources, projected once per sentence: [B, H, S, C], one per layer.

    The K rows of a sentence attend to it together, as K queries.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], mask: Tensor) -> None:
        self.layers = layers
        self.mask: Tensor | None = mask  # None where nothing is padding

    def __len__(self) -> int:
        """B, the sentences."""
        return len(self.layers[0][0])

    def settle(self) -> None:
        """Makes ready for many steps: what each would do again is done once."""
        self.layers = [(keys.contiguous(), values.contiguous()) for keys, values in self.layers]
        self.mask = None if self.mask is None or self.mask.all() else self.mask

    def select(self, sentences: Tensor) -> None:
        """Sentence i becomes what sentence ``sentences[i]`` was; [B'] int64."""
        if self.mask is not None:
            self.mask = self.mask.index_select(0, sentences)
        self.layers = [
            (keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.layers
        ]


class RecurrentState:
    """Tensors held once a sentence, and tensors held once a row that every step replaces."""

    def __init__(self, source: tuple[Tensor, ...], rows: list[Tensor]) -> None:
        self.source = source  # [B, ...] each
        self.rows = rows  # [N, ...] each
        self.width = 1
        self.position = 0

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats, reorders or drops rows; see :class:`nmt.models.base.State`."""
        sentences = rows[:, 0] // self.width
        self.source = tuple(tensor.index_select(0, sentences) for tensor in self.source)
        self.width = rows.shape[1]
        self.rows = [tensor.index_select(0, rows.reshape(-1)) for tensor in self.rows]

"""Decoder state: the tensors that a decoder keeps between steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmt.models.layers.basic import ResidualModule
from nmt.models.layers.sentences import Padded, SentenceLayout

ROOM = 8
"""Steps by which a cache grows at a time."""

MOST_SHARING = 32
"""Up to this many rows share one attention call on a CPU. With more rows, one cache per row is
faster."""


class BeamAncestry:
    """Ancestor entries of every row of a beam.

    Every step adds one entry per row of a sentence. Suppose that both of two rows continue the
    first row of the step before: row 0 then descends from the entries 0 and 2, row 1 from the
    entries 0 and 3, and no row descends from entry 1.
    """

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        """Number of steps so far; in a step, with that one."""
        self._entries: Tensor | None = None  # [B, K, E] bool; None while each sentence has one row
        self._bias: Tensor | None = None  # of this step

    @property
    def position(self) -> int:
        """Position of the newest step, from 0."""
        return self.steps - 1

    @property
    def has_branched(self) -> bool:
        """Whether a sentence has ever had more than one row."""
        return self._entries is not None

    def step(self, cache: KeyValueCache | None = None) -> DecodingStep:
        """Return the newest step, of the whole model or of a layer with this shared cache."""
        return DecodingStep(self.position, cache, None if cache is None else self)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of scores [B, 1, K, E]: 0 at a row's ancestors, else -infinity.

        It is the same for all layers of a step. None if there was only ever one row.
        """
        if self._entries is None:
            return None
        if self._bias is None:
            sentences, rows, entries = self._entries.shape
            # Kernels of a GPU copy a bias whose rows do not begin at multiples of 16 bytes.
            room = self._entries.new_zeros(sentences, rows, -(-entries // 8) * 8, dtype=dtype)
            self._bias = room[..., :entries].masked_fill_(~self._entries, float("-inf"))[:, None]
        return self._bias

    def grow(self, tokens: Tensor) -> None:
        """Add one entry per row of `tokens` [B, K]; each row descends from its new entry."""
        sentences, rows = tokens.shape
        if self._entries is not None or rows > 1:
            if self._entries is None:  # every row descends from all steps with one row
                self._entries = tokens.new_ones(sentences, rows, self.steps, dtype=torch.bool)
            # Entries are never moved: a row that continues another one inherits a mask, not keys.
            new = torch.eye(rows, dtype=torch.bool, device=tokens.device).expand(sentences, -1, -1)
            self._entries = torch.cat((self._entries, new), dim=-1)
        self.steps += 1
        self._bias = None

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows; see :class:`nmt.models.base.State`."""
        if self._entries is not None:
            # Only a few bits move for each row; a cache per row would move all keys and values.
            self._entries = self._entries.flatten(0, 1)[rows]


class TokenMixer(ResidualModule, ABC):
    """The sublayer that mixes the tokens of a sentence: self-attention, or what replaces it."""

    @abstractmethod
    def forward(self, x: Tensor, sentences: SentenceLayout, causal: bool = False) -> Tensor:
        """Mix the tokens of each sentence of `x`; returns the shape of `x`.

        Args:
            x: padded sentences [B, T, D], or a pack [P, D].
            sentences: the sentences of `x`, `Padded` or `Packed`.
            causal: whether a token sees only the tokens up to itself.
        """

    @abstractmethod
    def new_cache(self) -> Cache:
        """Return the past of a decoder layer before its first step."""


class Cache(ABC):
    """The past of one decoder layer's :class:`TokenMixer`."""

    @abstractmethod
    def attend(self, sublayer: Any, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """Compute one step of a sublayer; adds the step to the past.

        Args:
            sublayer: the sublayer that made this cache.
            x: the step's input [B, K, D].
            ancestry: from which rows of earlier steps each row descends.

        Returns:
            [B, K, D].
        """

    @abstractmethod
    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Keep, repeat, reorder or drop rows.

        Args:
            rows: [B', K'] int64, see :class:`nmt.models.base.State`.
            sentences: [B'], the old index of each new sentence, rising; None if all stay.
        """

    def for_rows(self, count: int) -> Cache:
        """Return the cache with this past for `count` rows of a sentence, which has had one."""
        return self


class DecodingStep(Padded):
    """The newest tokens of the rows of a search, [B, K, ...], all at one position."""

    def __init__(
        self,
        position: int,
        cache: KeyValueCache | None = None,
        ancestry: BeamAncestry | None = None,
    ) -> None:
        """Describe the step of a layer with this cache; without one, of the whole model.

        Args:
            position: of the tokens, from 0.
            cache: keys and values of the steps so far.
            ancestry: which keys each row sees; None for all in the cache.
        """
        self.position = position
        self.cache = cache
        self.ancestry = ancestry

    def extend_past(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the step's keys and values to the cache; returns all so far, and their mask."""
        assert self.cache is not None
        mask = None if self.ancestry is None else self.ancestry.bias(keys.dtype)
        return *self.cache.extend(keys, values), mask

    def positions(self, x: Tensor) -> Tensor:
        """Return the position [1]."""
        return torch.arange(self.position, self.position + 1, device=x.device)

    def longest(self, x: Tensor) -> int:
        """Return 1."""
        return 1

    def encodings(self, encode: nn.Module, tokens: Tensor) -> Tensor:
        """Return the encoding [1, D], or a scalar zero if there are none."""
        encodings: Tensor = encode(self.position, 1, tokens.device)
        return encodings


class KeyValueCache(Cache):
    """Keys and values of the steps so far.

    The cache allocates memory ahead, so that a step copies only its own keys and values.
    """

    def __init__(self) -> None:
        self.entries = 0
        self._keys: Tensor | None = None  # [B or N, G, at least E, C]
        self._values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B or N, G, n, C]; returns all keys and values so far."""
        self._keys = _write(self._keys, keys, self.entries)
        self._values = _write(self._values, values, self.entries)
        self.entries += keys.shape[2]
        return self._keys[:, :, : self.entries], self._values[:, :, : self.entries]

    def _take(self, groups: Tensor) -> None:
        """Replace group i by the old group ``groups[i]``."""
        if self._keys is not None and self._values is not None:
            # A copy, because groups may repeat.
            self._keys = self._keys.index_select(0, groups)
            self._values = self._values.index_select(0, groups)


class SharedCache(KeyValueCache):
    """Cache with one group per sentence, for attention that ignores the order in the cache.

    The rows of a sentence attend together, each to its ancestors: the keys of all rows are
    interleaved. Reordering rows moves no memory.
    """

    def attend(self, sublayer: nn.Module, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """Attend with K queries per sentence."""
        attended: Tensor = sublayer(x, ancestry.step(self))
        return attended

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Move sentences; rows need no move."""
        if sentences is not None:
            self._take(sentences)

    def for_rows(self, count: int) -> Cache:
        """Return a cache per row, with more than `MOST_SHARING` rows on a CPU; else this cache.

        In the shared cache each row computes scores with every row's keys.
        """
        if count <= MOST_SHARING or self._keys is None or not self._keys.is_cpu:
            return self
        ordered = OrderedCache()
        ordered.entries, ordered._keys, ordered._values = self.entries, self._keys, self._values
        return ordered


class OrderedCache(KeyValueCache):
    """Cache with one group per row, which holds the row's past in order."""

    def attend(self, sublayer: nn.Module, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """Attend with one query per row."""
        rows = x.flatten(0, 1)[:, None]  # [N, 1, D]
        attended: Tensor = sublayer(rows, DecodingStep(ancestry.position, self))
        return attended.view_as(x)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Copy the past of every row."""
        self._take(rows.reshape(-1))


def _write(stored: Tensor | None, new: Tensor, at: int) -> Tensor:
    """Write new entries at position `at` of the stored ones, which grow if needed."""
    groups, heads, count, width = new.shape
    if stored is None or at + count > stored.shape[2]:
        # Room for eight steps at a time: growing at every step would copy the whole past each time.
        roomy = new.new_empty(groups, heads, at + ROOM * count, width)
        if stored is not None:
            roomy[:, :, :at] = stored[:, :, :at]
        stored = roomy
    # In place, because a search keeps no gradients.
    stored[:, :, at : at + count] = new
    return stored


class Memory(Padded):
    """The sources with their keys and values [B, H, S, C] of each layer, projected once.

    The K rows of a sentence attend to the memory together, as K queries.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, ...]], mask: Tensor | None) -> None:
        super().__init__(mask)
        self.layers = layers

    def __len__(self) -> int:
        """Return B, the number of sentences."""
        return len(self.layers[0][0])

    def settle(self) -> None:
        """Prepare for many steps: make tensors contiguous and drop a mask without padding."""
        # Views into a wide projection would be copied by each of the many steps.
        self.layers = [tuple(part.contiguous() for part in layer) for layer in self.layers]
        self.mask = None if self.mask is None or self.mask.all() else self.mask

    def select(self, sentences: Tensor) -> None:
        """Replace sentence i by the old sentence ``sentences[i]``; [B'] int64."""
        if self.mask is not None:
            self.mask = self.mask.index_select(0, sentences)
        self.layers = [
            tuple(part.index_select(0, sentences) for part in layer) for layer in self.layers
        ]


class RecurrentState:
    """Tensors stored per sentence, and tensors stored per row that every step replaces."""

    def __init__(self, source: tuple[Tensor, ...], rows: list[Tensor]) -> None:
        self.source = source  # [B, ...] each
        self.rows = rows  # [N, ...] each
        self.width = 1
        self.position = 0

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows; see :class:`nmt.models.base.State`."""
        # The rows of a sentence all come from one sentence, so the first row tells which.
        sentences = rows[:, 0] // self.width
        self.source = tuple(tensor.index_select(0, sentences) for tensor in self.source)
        self.width = rows.shape[1]
        self.rows = [tensor.index_select(0, rows.reshape(-1)) for tensor in self.rows]

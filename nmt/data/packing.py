"""Packing: the tokens of a batch one after another, without padding.

Token-wise layers run on a *pack*, [P, D]. Attention alone needs to know which tokens belong to one
sentence. On a CPU it works on *rows*: each row holds several whole sentences, so that the rows are
nearly full although the sentences differ in length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Lengths = NDArray[np.integer]

GRAIN = 64
"""Packs are padded to a multiple of this many tokens, because each new shape costs a CPU new
kernels."""

CPU = torch.device("cpu")

SHORTEST_ROW = 32
"""Least length of a row, unless a batch has fewer tokens; products of shorter rows are slow."""


class Rows:
    """Rows of whole sentences; the target of a sentence is in the same row as its source."""

    def __init__(self, source_lengths: Lengths, target_lengths: Lengths) -> None:
        self._lengths = np.stack((source_lengths, target_lengths)).astype(np.int64)

    @cached_property
    def of_sentences(self) -> Lengths:
        """[B] the row of each sentence.

        From the longest pair to the shortest, each goes into the row where max(source tokens,
        target tokens), counting this pair, is smallest.
        """
        lengths = self._lengths
        longest = max(SHORTEST_ROW, int(lengths.max()))
        # As many rows as hold the fuller side, if each is about as long as the longest sentence.
        filled = np.zeros((2, max(1, round(int(lengths.sum(1).max()) / longest))), np.int64)
        row_of = np.zeros(lengths.shape[1], np.int64)
        # Longest first into the emptiest row, the usual heuristic for bins: short sentences fill
        # the gaps.
        for at in np.argsort(-lengths.sum(0), kind="stable"):
            pair = lengths[:, at, None]
            # One row for source and target, because cross-attention stays within a row.
            row = row_of[at] = (filled + pair).max(0).argmin()
            filled[:, row] += pair[:, 0]
        return row_of


@dataclass(frozen=True)
class Pack:
    """One side of a batch of B sentences: where its P tokens are."""

    lengths: Lengths
    """[B] numbers of tokens, on the host."""
    rows: Rows
    """The rows of both sides."""
    device: torch.device = CPU
    _made: dict[Hashable, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def to(self, device: torch.device) -> Pack:
        """Return the pack with tensors on a device."""
        return Pack(self.lengths, self.rows, device)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sentence, at least 1."""
        return int(self.lengths.max(initial=1))

    @cached_property
    def positions(self) -> Tensor:
        """[P] int64, the position of each token in its sentence, from 0."""
        return self._tensor(self._positions)

    @cached_property
    def tokens(self) -> Tensor:
        """[P] int64, the flat index of each token among padded sentences [B, longest]."""
        starts = np.arange(len(self.lengths)) * self.longest
        return self._tensor(np.repeat(starts, self.lengths) + self._positions)

    def has_neighbour(self, offset: int) -> Tensor:
        """[P] bool, whether the token's sentence has a token at this distance after it."""

        def make() -> NDArray[np.bool_]:
            neighbour = self._positions + offset
            return (neighbour >= 0) & (neighbour < np.repeat(self.lengths, self.lengths))

        return self._once(("neighbour", offset), make)

    def take(self, x: Tensor, pack: Pack) -> Tensor:
        """Return the vectors [P', W] of another pack [P, W] at these tokens' positions.

        The packs have the same sentences. A position beyond the end of the sentence in the other
        pack gets zeros.
        """
        starts = np.cumsum(pack.lengths) - pack.lengths
        places = np.repeat(starts, self.lengths) + self._positions
        # The place after the last token holds a zero vector.
        places[self._positions >= np.repeat(pack.lengths, self.lengths)] = len(x)
        return F.pad(x, (0, 0, 0, 1)).index_select(0, self._tensor(places))

    @cached_property
    def ends(self) -> Tensor:
        """[B + 1] int32, the end of each sentence in the pack, after a 0."""
        return self._tensor(np.concatenate(([0], np.cumsum(self.lengths))).astype(np.int32))

    @cached_property
    def sentence_of_tokens(self) -> Tensor:
        """[P] int32, the number of each token's sentence, from 0."""
        numbers = np.arange(len(self.lengths), dtype=np.int32)
        return self._tensor(np.repeat(numbers, self.lengths))

    def pad(self, x: Tensor) -> Tensor:
        """Return tokens [P] or vectors [P, W] as padded sentences [B, longest, ...].

        Padding is 0, for token ids PAD.
        """
        count, rest = len(self.lengths), x.shape[1:]
        # A copy by index has a gradient that is a copy by index, too.
        padded = x.new_zeros(count * self.longest, *rest).index_copy(0, self.tokens, x)
        return padded.view(count, self.longest, *rest)

    def unpad(self, padded: Tensor) -> Tensor:
        """Return padded sentences [B, longest, ...] as tokens [P, ...]."""
        return padded.flatten(0, 1).index_select(0, self.tokens)

    @property
    def mask(self) -> Tensor:
        """[B, longest] bool, True at tokens of padded sentences."""
        return self.pad(torch.ones_like(self.tokens, dtype=torch.bool))

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(int(self.lengths.sum())) - np.repeat(starts, self.lengths)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(R, L): the number of rows, and the number of tokens of the fullest row."""
        filled = np.bincount(self.rows.of_sentences, weights=self.lengths)
        return len(filled), -(-int(filled.max()) // 8) * 8  # whole vectors of a processor

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """[P], the flat index of each token among the rows [R, L]."""
        row_of = self.rows.of_sentences
        order = np.argsort(row_of, kind="stable")
        lengths = self.lengths[order]
        begins = np.cumsum(lengths) - lengths  # of a sentence, if rows were not divided
        first = np.searchsorted(row_of[order], np.arange(self.shape[0]))
        starts = np.empty_like(begins)
        # From the beginning of the row, where its first sentence lies.
        starts[order] = begins - begins[first][row_of[order]]
        starts += row_of * self.shape[1]
        return np.repeat(starts, self.lengths) + self._positions

    @property
    def places(self) -> Tensor:
        """[P] int64, the flat index of each token among the rows [R, L]."""
        return self._once("places", lambda: self._places)

    @cached_property
    def sentences(self) -> Tensor:
        """[R, L] int64, the number of the sentence from 0 at each place of the rows; -1 nowhere."""
        sentences = np.full(self.shape[0] * self.shape[1], -1)
        sentences[self._places] = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return self._tensor(sentences.reshape(self.shape))

    def to_rows(self, parts: int, heads: int) -> Tensor:
        """Return the index that arranges vectors by part, row, head and place in the row.

        Vectors are the slices of [P, parts * heads * C] of length C. A place without a token gets a
        vector of the first token.

        Returns:
            [parts * R * heads * L] int64, into the vectors [P * parts * heads].
        """

        def make() -> NDArray[np.int64]:
            # Empty places read token 0; the bias keeps real tokens from seeing them.
            tokens = np.zeros(self.shape[0] * self.shape[1], np.int64)
            tokens[self._places] = np.arange(len(self._places))
            token = tokens.reshape(self.shape[0], 1, self.shape[1])
            part, head = np.arange(parts)[:, None, None, None], np.arange(heads)[:, None]
            return (token * parts + part) * heads + head

        return self._once(("to_rows", parts, heads), make)

    def from_rows(self, parts: int, heads: int) -> Tensor:
        """Return the inverse of :meth:`to_rows`: [P * parts * heads], into parts of rows."""

        def make() -> NDArray[np.int64]:
            row, place = np.divmod(self._places[:, None, None], self.shape[1])
            part, head = np.arange(parts)[:, None], np.arange(heads)
            return ((part * self.shape[0] + row) * heads + head) * self.shape[1] + place

        return self._once(("from_rows", parts, heads), make)

    def empty_places(self, heads: int) -> Tensor:
        """Return the flat indices among [R, heads, L] of the places without a token."""

        def make() -> NDArray[np.int64]:
            is_empty = np.ones(self.shape[0] * self.shape[1], bool)
            is_empty[self._places] = False
            row, place = np.divmod(np.flatnonzero(is_empty)[:, None], self.shape[1])
            return (row * heads + np.arange(heads)) * self.shape[1] + place

        return self._once(("empty", heads), make)

    def bias(self, keys: Pack, causal: bool, dtype: torch.dtype) -> Tensor:
        """Return [R, 1, L, L'], to be added to scores: 0 within a sentence, else very negative.

        Args:
            keys: the pack of the keys, with the same sentences in the same rows.
            causal: whether a token sees only the tokens up to itself; for keys of the same pack.
            dtype: of the scores.
        """
        key = ("bias", keys is self, causal, dtype)
        if key not in self._made:
            allowed = self.sentences[:, :, None] == keys.sentences[:, None, :]
            if causal:
                # Tokens of a sentence lie in order in their row, so a triangle is causal within
                # each.
                allowed = allowed.tril()
            # Finite, so that an empty place does not become NaN.
            scores = torch.zeros(allowed.shape, dtype=dtype, device=self.device)
            # Half of the least number, so that adding a negative score gives no infinity.
            scores.masked_fill_(~allowed, torch.finfo(dtype).min / 2)
            self._made[key] = scores[:, None]
        return self._made[key]

    def _once(self, key: Hashable, make: Callable[[], NDArray[Any]]) -> Tensor:
        # All layers of a model ask for the same index.
        if key not in self._made:
            self._made[key] = self._tensor(make().ravel())
        return self._made[key]

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":  # or the host would wait for the device
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


@dataclass(frozen=True)
class Packing:
    """Both sides of a batch."""

    source: Pack
    target: Pack

    @classmethod
    def from_lengths(cls, source_lengths: Lengths, target_lengths: Lengths) -> Packing:
        """Return a packing of pairs of sentences with these lengths [B]."""
        rows = Rows(source_lengths, target_lengths)
        return cls(Pack(source_lengths, rows), Pack(target_lengths, rows))

    def to(self, device: torch.device) -> Packing:
        """Return the packing with tensors on a device."""
        return Packing(self.source.to(device), self.target.to(device))

    def prepare(self) -> None:
        """Compute what attention on a GPU reads, since numpy cannot be compiled."""
        for side in (self.source, self.target):
            _ = side.positions, side.ends, side.longest, side.sentence_of_tokens

    def raise_longest(self, longest: int) -> None:
        """Set the length of the longest sentence of both sides to more than it is."""
        for side in (self.source, self.target):
            # A recorded graph launches its kernels for this length, whatever the batch holds.
            vars(side)["longest"] = longest

    @property
    def is_round(self) -> bool:
        """Whether the tokens of each side are a multiple of GRAIN, and not zero."""
        counts = [int(side.lengths.sum()) for side in (self.source, self.target)]
        return all(count and count % GRAIN == 0 for count in counts)

    @cached_property
    def rounded(self) -> Packing:
        """The same with one more pair, which makes the tokens of each side a multiple of GRAIN.

        The pair has at least one token on each side: without keys, a softmax would be NaN.
        """
        lengths = (
            np.append(side.lengths, GRAIN - side.lengths.sum() % GRAIN)
            for side in (self.source, self.target)
        )
        return Packing.from_lengths(*lengths).to(self.source.device)

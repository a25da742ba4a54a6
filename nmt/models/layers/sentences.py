"""Sentences of a batch in a tensor: padded, or one after another in a pack.

A layer that computes each token by itself need not know. A layer that mixes the tokens of a
sentence is given its :class:`Sentences`, and has one path for both and for the steps of a search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmt.data.packing import Pack
from nmt.data.vocabulary import PAD
from nmt.models.kernels.packs import mix_packs
from nmt.models.layers.attention import Attend, split_heads


class Sentences(ABC):
    """The sentences of a tensor of tokens, and of the tokens that these attend to."""

    @abstractmethod
    def positions(self, x: Tensor) -> Tensor:
        """Return the positions of the tokens of `x` in their sentences, from 0; int64."""

    @abstractmethod
    def longest(self, x: Tensor) -> int:
        """Return the number of positions of the longest sentence of `x`."""

    @abstractmethod
    def encodings(self, encode: nn.Module, tokens: Tensor) -> Tensor:
        """Return the encodings of the positions of `tokens`, which are added to embeddings.

        Args:
            encode: from :meth:`nmt.models.transformer.positions.PositionPart.embedding`.
            tokens: [B, T] or [P] int64.
        """

    @abstractmethod
    def split(
        self, projected: Tensor, sizes: Sequence[int], counts: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Return some of queries, keys and values as :meth:`mix` takes them.

        Args:
            projected: these side by side, [B, T, W] or [P, W].
            sizes: the number of columns of each.
            counts: the number of heads of each.
        """

    @abstractmethod
    def mix(self, attend: Attend, parts: Sequence[Tensor], causal: bool = False) -> Tensor:
        """Return the values of each sentence mixed by the attention weights, heads side by side.

        Args:
            attend: the attention of these heads.
            parts: queries, keys and values from :meth:`split`.
            causal: whether a query sees only the keys up to itself.

        Returns:
            [B, T, H * C'] or [P, H * C'].
        """


class Padded(Sentences):
    """Sentences of one length, [B, T, ...], with padding at the ends of the shorter ones."""

    def __init__(self, mask: Tensor | None = None) -> None:
        self.mask = mask
        """Of the keys, [B, 1, 1, S] bool, True at tokens; or [B, 1 or H, 1, S], which is added to
        scores; or None where nothing is padding."""

    @classmethod
    def of(cls, tokens: Tensor) -> Padded:
        """Return the sentences of token ids [B, S], whose padding is not attended to."""
        return cls((tokens != PAD)[:, None, None, :])

    def positions(self, x: Tensor) -> Tensor:
        """Return the positions [T] of all sentences of `x` [B, T, ...]."""
        return torch.arange(x.shape[1], device=x.device)

    def longest(self, x: Tensor) -> int:
        """Return T of `x` [B, T, ...]."""
        return x.shape[1]

    def encodings(self, encode: nn.Module, tokens: Tensor) -> Tensor:
        """Return the encodings [T, D], or a scalar zero if there are none."""
        encodings: Tensor = encode(0, tokens.shape[1], tokens.device)
        return encodings

    def split(
        self, projected: Tensor, sizes: Sequence[int], counts: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Return each part as [B, H, T, C]."""
        if len(sizes) == 1:  # for speed in a step
            return (split_heads(projected, counts[0]),)
        return tuple(map(split_heads, projected.split_with_sizes(list(sizes), -1), counts))

    def mix(self, attend: Attend, parts: Sequence[Tensor], causal: bool = False) -> Tensor:
        """Return the mixed values [B, T, H * C']."""
        queries, keys, values = parts
        return attend.mix(queries, keys, values, self.mask, causal)


class Step(Padded):
    """The newest tokens of the rows of a search, [B, K, ...], all at one position."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position

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

    def mix(self, attend: Attend, parts: Sequence[Tensor], causal: bool = False) -> Tensor:
        """Refuse to mix: each row attends to its past, which its layer's cache has.

        Raises:
            TypeError: always.
        """
        raise TypeError("a step attends through the cache of its layer")


class Packed(Sentences):
    """Sentences one after another without padding, [P, ...]."""

    def __init__(self, pack: Pack, keys: Pack | None = None) -> None:
        self.pack = pack
        """The tokens."""
        self.keys = pack if keys is None else keys
        """The tokens that these attend to: themselves, or those of the other language."""

    def positions(self, x: Tensor) -> Tensor:
        """Return the position [P] of each token."""
        return self.pack.positions

    def longest(self, x: Tensor) -> int:
        """Return the number of tokens of the longest sentence."""
        return self.pack.longest

    def encodings(self, encode: nn.Module, tokens: Tensor) -> Tensor:
        """Return the encodings [P, D], or a scalar zero if there are none."""
        encodings: Tensor = encode(0, self.pack.longest, tokens.device)
        return encodings if encodings.dim() == 0 else encodings.index_select(0, self.pack.positions)

    def split(
        self, projected: Tensor, sizes: Sequence[int], counts: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Return the parts as they are: side by side, [P, W]."""
        return (projected,)

    def mix(self, attend: Attend, parts: Sequence[Tensor], causal: bool = False) -> Tensor:
        """Return the mixed values [P, H * C']."""
        return mix_packs(attend, parts, (self.pack, self.keys), causal)

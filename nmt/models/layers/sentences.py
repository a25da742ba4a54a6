"""Sentences of a batch in a tensor: padded, or one after another in a pack.

Feed-forward layers and norms treat each token alone and ignore this layout. A layer that mixes the
tokens of a sentence gets the :class:`SentenceLayout`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmt.data.packing import Pack
from nmt.data.vocabulary import PAD
from nmt.models.kernels.packs import attend_by_kernel, attend_padded, choose_kernel
from nmt.models.layers.attention import MultiHeadAttention


class SentenceLayout(ABC):
    """Where each sentence lies in a tensor of tokens, and which keys its queries may attend to."""

    mask: Tensor | None = None
    """Mask of padded keys: [B, 1, 1, S] bool, True at tokens; or a bias [B, 1 or H, 1, S] that is
    added to scores; or None without padding."""

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


class Padded(SentenceLayout):
    """Sentences of one length, [B, T, ...], with padding at the ends of the shorter ones."""

    def __init__(self, mask: Tensor | None = None) -> None:
        self.mask = mask

    @classmethod
    def of(cls, tokens: Tensor) -> Padded:
        """Return the sentences of token ids [B, S], whose padding is not attended to."""
        # [B, 1, 1, S]: one mask for all heads and all queries.
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


class Packed(SentenceLayout):
    """Sentences one after another without padding, [P, ...]."""

    def __init__(
        self, pack: Pack, keys: Pack | None = None, attention: MultiHeadAttention | None = None
    ) -> None:
        """Choose how plain attention computes, once for all layers of a forward pass.

        Args:
            pack: the tokens.
            keys: the tokens that these attend to; None for themselves.
            attention: any of the layers; None if there is nothing to choose.
        """
        self.pack = pack
        self.keys = pack if keys is None else keys
        self.kernel = None
        if attention is not None:
            self.kernel = choose_kernel(attention, (self.pack, self.keys))

    def positions(self, x: Tensor) -> Tensor:
        """Return the position [P] of each token."""
        return self.pack.positions

    def longest(self, x: Tensor) -> int:
        """Return the number of tokens of the longest sentence."""
        return self.pack.longest

    def encodings(self, encode: nn.Module, tokens: Tensor) -> Tensor:
        """Return the encodings [P, D], or a scalar zero if there are none."""
        # Encodings are looked up once for each position, then chosen for each token.
        encodings: Tensor = encode(0, self.pack.longest, tokens.device)
        return encodings if encodings.dim() == 0 else encodings.index_select(0, self.pack.positions)

    def attend(
        self, attention: MultiHeadAttention, parts: Sequence[Tensor], causal: bool = False
    ) -> Tensor:
        """Return the weighted means of the values [P, H * C'], heads side by side.

        Args:
            attention: the attention function and its sizes.
            parts: queries, keys and values side by side [P, W]; or queries, and keys and values
                side by side [P', W].
            causal: whether a query sees only the keys up to itself.
        """
        packs = self.pack, self.keys
        # Encodings and patterns that act on scores know padded sentences alone.
        if self.kernel is None or not attention.is_plain:
            return attend_padded(attention, parts, packs, causal)
        return attend_by_kernel(self.kernel, attention, parts, packs, causal)

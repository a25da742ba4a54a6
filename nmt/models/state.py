"""What a decoder remembers between steps."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Keys and values of the steps so far: [N, H, T, C] each, one row per hypothesis."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to and with those of this step [N, H, 1, C]."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat((self.keys, keys), dim=2)
            values = torch.cat((self.values, values), dim=2)
        self.keys, self.values = keys, values
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row ``rows[i]`` was; rows [N'] int64."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, rows)
            self.values = self.values.index_select(0, rows)


class Memory:
    """Keys and values of the sources, projected once per sentence: [B, H, S, C], one per layer.

    The K rows of a sentence attend to it together, as K queries.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], mask: Tensor) -> None:
        self.layers = layers
        self.mask = mask

    def select(self, sentences: Tensor) -> None:
        """Sentence i becomes what sentence ``sentences[i]`` was; [B'] int64."""
        if torch.equal(sentences, torch.arange(len(self.mask), device=sentences.device)):
            return
        self.mask = self.mask.index_select(0, sentences)
        self.layers = [
            (keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.layers
        ]


class SourceAndRows:
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

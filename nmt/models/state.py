"""What a decoder remembers between steps."""

from __future__ import annotations

import torch
from torch import Tensor

ROOM = 16
"""Steps for which a cache makes room at a time."""


class Cache:
    """Keys and values of the steps so far: [N, H, T, C] each, one row per hypothesis.

    They are written into room that is made ahead, so that a step copies nothing but itself.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._keys: Tensor | None = None  # [N, H, at least T, C]
        self._values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values up to and with those of this step [N, H, 1, C]."""
        self._keys = _write(self._keys, keys, self.steps)
        self._values = _write(self._values, values, self.steps)
        self.steps += 1
        return self._keys[:, :, : self.steps], self._values[:, :, : self.steps]

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row ``rows[i]`` was; rows [N'] int64."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)


def _write(stored: Tensor | None, step: Tensor, at: int) -> Tensor:
    """The stored steps with that step written at its place, in more room where there is none."""
    if stored is None or at == stored.shape[2]:
        rows, heads, _, width = step.shape
        roomy = step.new_empty(rows, heads, at + ROOM, width)
        if stored is not None:
            roomy[:, :, :at] = stored
        stored = roomy
    stored[:, :, at] = step[:, :, 0]
    return stored


class Memory:
    """Keys and values of the sources, projected once per sentence: [B, H, S, C], one per layer.

    The K rows of a sentence attend to it together, as K queries.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], mask: Tensor) -> None:
        self.layers = layers
        self.mask = mask

    def select(self, sentences: Tensor) -> None:
        """Sentence i becomes what sentence ``sentences[i]`` was; [B'] int64."""
        # On a GPU to compare would be to wait for the device, which costs more than the copy.
        if sentences.device.type == "cpu" and torch.equal(sentences, torch.arange(len(self.mask))):
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

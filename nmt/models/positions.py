"""Encodings of positions (Vaswani et al. 2017, section 3.5), to be added to embeddings."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

Layout = Literal["interleaved", "concatenated"]


def sinusoids(length: int, width: int, layout: Layout = "interleaved") -> Tensor:
    """Encodings [length, width] of the positions from 0.

    Args:
        length: number of positions.
        width: number of features, even.
        layout: "interleaved" is the paper's, sin(p / 10000^(2i/width)) at 2i and its cosine at
            2i+1; "concatenated" is tensor2tensor's and fairseq's, all sines before all cosines
            and the exponent i / (width/2 - 1).
    """
    pairs = width // 2
    steps = pairs if layout == "interleaved" else max(pairs - 1, 1)
    rates = torch.exp(torch.arange(pairs) * (-math.log(10000.0) / steps))
    angles = torch.arange(length)[:, None] * rates  # [length, pairs]
    waves = (angles.sin(), angles.cos())
    if layout == "interleaved":
        return torch.stack(waves, dim=-1).flatten(1)
    return torch.cat(waves, dim=-1)


class SinusoidalPositions(nn.Module):
    """The encodings of a stretch of positions; the table grows with the longest input seen."""

    def __init__(self, width: int, layout: Layout = "interleaved") -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}")
        self.width = width
        self.layout: Layout = layout
        self.table = sinusoids(256, width, layout)  # no buffer: processes need not agree on it

    def forward(self, first: int, count: int, device: torch.device) -> Tensor:
        """The encodings [count, D] of the positions ``first`` to ``first + count - 1``."""
        if first + count > len(self.table):
            self.table = sinusoids(2 * (first + count), self.width, self.layout)
        self.table = self.table.to(device)
        return self.table[first : first + count]


class LearnedPositions(nn.Module):
    """A table of encodings, one row a position; positions beyond it share the last row."""

    def __init__(self, count: int, width: int, std: float) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, first: int, count: int, device: torch.device) -> Tensor:
        """The encodings [count, D] of the positions ``first`` to ``first + count - 1``."""
        positions = torch.arange(first, first + count, device=device)
        rows: Tensor = self.table(positions.clamp(max=self.table.num_embeddings - 1))
        return rows

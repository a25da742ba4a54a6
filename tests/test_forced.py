"""Forced decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmt.inference.forced import POSITIONS, token_log_probabilities


def test_a_long_source_is_not_in_a_batch_with_many_short_ones() -> None:
    shapes = []

    def model(source: Tensor, target: Tensor) -> Tensor:
        shapes.append((source.numel(), target.numel()))
        return torch.zeros(*target.shape, 8)

    forced: Any = model
    sources = [[5] * length for length in (*range(1, 200), 2 * POSITIONS)]
    found = token_log_probabilities(forced, sources, [[4]] * 200, torch.device("cpu"))
    assert [len(row) for row in found] == [1] * 200
    assert max(shapes) == (2 * POSITIONS, 1)
    assert all(target <= POSITIONS for _, target in shapes)
    assert sorted(source <= POSITIONS for source, _ in shapes)[:2] == [False, True]

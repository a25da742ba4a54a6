"""Forced decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny
from torch import Tensor

from nmt.data.vocabulary import EOS
from nmt.inference import alignment
from nmt.inference.alignment import (
    POSITIONS,
    attention_weights,
    next_log_probabilities,
    token_log_probabilities,
)

CPU = torch.device("cpu")


def test_a_long_source_is_not_in_a_batch_with_many_short_ones() -> None:
    shapes = []

    def model(source: Tensor, target: Tensor) -> Tensor:
        shapes.append((source.numel(), target.numel()))
        return torch.zeros(*target.shape, 8)

    recorded: Any = model
    sources = [[5] * length for length in (2 * POSITIONS, *range(199, 0, -1))]
    found = token_log_probabilities(recorded, sources, [[4]] * 200, CPU)
    assert [len(row) for row in found] == [1] * 200
    assert max(shapes) == (2 * POSITIONS, 1)
    assert all(target <= POSITIONS for _, target in shapes)
    assert sorted(source <= POSITIONS for source, _ in shapes)[:2] == [False, True]


@torch.no_grad()
def test_pairs_have_in_batches_what_they_have_alone_and_token_by_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    model = tiny("transformer_tiny").build(VOCABULARY, VOCABULARY, True).eval()
    sources = [[*range(4, 4 + length), EOS] for length in (7, 1, 3, 4, 2)]
    targets = [[*range(9, 9 + length), EOS] for length in (2, 9, 1, 0, 4)]
    monkeypatch.setattr(alignment, "POSITIONS", 20)
    log_probs = token_log_probabilities(model, sources, targets, CPU)
    weights = attention_weights(model, sources, targets, CPU)
    for source, target, row, matrix in zip(sources, targets, log_probs, weights, strict=True):
        by_token = [
            float(next_log_probabilities(model, source, target[:at], CPU)[token])
            for at, token in enumerate(target)
        ]
        assert row == pytest.approx(by_token, abs=1e-5)
        [alone] = attention_weights(model, [source], [target], CPU)
        assert matrix.shape == (len(target), len(source))
        torch.testing.assert_close(matrix, alone)

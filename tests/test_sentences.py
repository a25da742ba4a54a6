"""Padded and packed sentences are the same ones; the contract of models compares whole models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nmt.data.packing import Packing
from nmt.models.kernels import packs
from nmt.models.layers.attention import LONG, AttentionConfig
from nmt.models.layers.cache import DecodingStep
from nmt.models.layers.sentences import Packed, Padded
from nmt.models.transformer.multi_head import CrossAttention, SelfAttention
from nmt.models.transformer.positions import Rotation, SinusoidalPositions

PACKING = Packing.from_lengths(*np.array([[5, 1, 9, 3], [7, 2, 4, 4]]))
HEADS = AttentionConfig(d_model=8, heads=4, d_k=2, d_v=2, bias=True, dropout=0.0)


def test_positions_and_their_encodings_are_those_of_padded_sentences() -> None:
    pack, padded = PACKING.source, Padded()
    tokens = torch.arange(18) + 4
    rows, sentences = pack.pad(tokens), Packed(pack)
    assert sentences.longest(tokens) == padded.longest(rows) == 9
    positions = padded.positions(rows).expand(4, 9)
    assert torch.equal(sentences.positions(tokens), pack.unpad(positions))
    encode: nn.Module = SinusoidalPositions(8, "interleaved")
    encodings = padded.encodings(encode, rows).expand(4, 9, 8)
    assert torch.equal(sentences.encodings(encode, tokens), pack.unpad(encodings))


def test_a_step_is_at_one_position() -> None:
    step, tokens, encode = (
        DecodingStep(3),
        torch.full((2, 4), 5),
        SinusoidalPositions(8, "interleaved"),
    )
    assert step.positions(tokens).tolist() == [3]
    assert step.longest(tokens) == 1
    assert torch.equal(step.encodings(encode, tokens)[0], Padded().encodings(encode, tokens)[3])


variants = pytest.mark.parametrize("changes", [{}, {"key_value_heads": 2}, {"d_v": 4}])
lengths = pytest.mark.parametrize("longest_row", [0, LONG], ids=["padded", "rows"])


@variants
@lengths
def test_tokens_attend_to_the_past_of_their_own_sentence(
    changes: dict[str, int], longest_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    monkeypatch.setattr(packs, "LONG", longest_row)
    attention = SelfAttention(replace(HEADS, **changes), rotation=Rotation(2, 10.0))
    pack, x = PACKING.source, torch.randn(18, 8)
    found = attention(x, Packed(pack, attention=attention), causal=True)
    expected = attention(pack.pad(x), Padded(), causal=True)
    torch.testing.assert_close(found, pack.unpad(expected))


@variants
@lengths
def test_targets_attend_to_the_sources_of_their_own_sentences(
    changes: dict[str, int], longest_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    monkeypatch.setattr(packs, "LONG", longest_row)
    cross = CrossAttention(replace(HEADS, **changes))
    sources, targets = torch.randn(18, 8), torch.randn(17, 8)
    across = Packed(PACKING.target, keys=PACKING.source, attention=cross)
    found = cross(targets, cross.project(sources, Packed(PACKING.source)), across)
    padded = Padded.of(PACKING.source.pad(torch.full((18,), 4)))
    memory = cross.project(PACKING.source.pad(sources), padded)
    expected = cross(PACKING.target.pad(targets), memory, padded)
    torch.testing.assert_close(found, PACKING.target.unpad(expected))

"""Attention on packs by the kernels that a machine may have; the contracts compare with padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.data.packing import Packing
from nmt.models import ModelConfig, packed_attention
from nmt.models.attention import Heads
from nmt.models.dropout import keep_mask
from nmt.models.multi_head import SelfAttention
from nmt.recipe.config import build

LENGTHS = np.array([[5, 1, 9, 3], [7, 2, 4, 4]])


@pytest.mark.parametrize(
    ("changes", "capability", "expected"),
    [
        ({}, (8, 0), True),
        ({"device": torch.device("cpu")}, (8, 0), False),
        ({"dtype": torch.float32}, (8, 0), False),
        ({"widths": (6, 6)}, (8, 0), False),
        ({"widths": (264, 264)}, (8, 0), False),
        ({"widths": (64, 32)}, (8, 0), False),
        ({"dropout": 0.1}, (8, 0), False),
        ({}, (7, 5), False),
    ],
)
def test_the_fused_kernel_is_for_half_precision_on_a_newer_gpu(
    changes: dict[str, Any],
    capability: tuple[int, int],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(packed_attention, "_has_varlen_attn", lambda: True)
    usual = {
        "device": torch.device("cuda"),
        "dtype": torch.bfloat16,
        "widths": (64, 64),
        "dropout": 0.0,
    }
    assert packed_attention._has_flash(**{**usual, **changes}) is expected


def test_a_pack_is_filled_up_once() -> None:
    source, target = (torch.arange(1, int(side.sum()) + 1) for side in LENGTHS)
    once = packed_attention.filled(source, target, Packing.of(*LENGTHS))
    assert [len(once[0]), len(once[1])] == [64, 64]
    assert packed_attention.filled(*once) == once


def test_the_signature_that_is_called_is_that_of_torch() -> None:
    pytest.importorskip("torch.nn.attention.varlen")
    assert packed_attention._has_varlen_attn()


def test_dropout_on_the_weights_keeps_their_mean() -> None:
    """Over many draws the dropped-out attention is the plain one."""
    torch.manual_seed(1)
    heads = Heads(width=8, count=2, key_width=4, value_width=4, bias=True, dropout=0.5)
    attention = SelfAttention(heads)
    pack = Packing.of(*LENGTHS).source
    x = torch.randn(int(LENGTHS[0].sum()), 8)

    def attended() -> Tensor:
        return attention(x, pack, causal=True).detach()

    dropped = torch.stack([attended() for _ in range(600)])
    attention.eval()
    assert not torch.equal(dropped[0], dropped[1])
    error = dropped.std(0) / 600**0.5
    assert ((dropped.mean(0) - attended()).abs() < 5 * error + 1e-5).all()


def test_the_mask_of_dropout_is_on_the_device_of_the_weights() -> None:
    assert keep_mask(torch.empty(2, 3, device="meta"), 0.5).device.type == "meta"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_is_that_of_numerical_differences(dropout: float) -> None:
    heads = Heads(width=6, count=2, key_width=3, value_width=3, bias=True, dropout=dropout)
    attention = SelfAttention(heads).double().train()
    pack = Packing.of(*LENGTHS).source
    x = torch.randn(int(LENGTHS[0].sum()), 6, dtype=torch.float64, requires_grad=True)

    def attended(x: Tensor) -> Tensor:
        torch.manual_seed(1)  # the same draw of dropout
        return attention(x, pack, causal=True)

    assert torch.autograd.gradcheck(attended, (x,), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "packs"),
    [
        ({}, True),
        ({"dropout": 0.3, "attention_dropout": 0.1, "residual": "pre_norm"}, True),
        ({"positions": "rotary"}, True),
        ({"positions": "learned"}, True),
        ({"positions": "alibi"}, False),
        ({"key_value_heads": 2}, True),
        ({"d_v": 16}, True),
        ({"encoder_attention": "neighbourhood"}, False),
    ],
)
def test_only_the_plain_attention_mixes_lengths_in_a_micro_batch(
    changes: dict[str, object], packs: bool
) -> None:
    """Another one pads its sentences, and its memory would not be bounded."""
    config: ModelConfig = build(ModelConfig, {"arch": "transformer_tiny", **changes}, "model")  # type: ignore[type-abstract]
    assert config.build(50, 50, True).packs is packs

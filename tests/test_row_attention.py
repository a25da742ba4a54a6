"""Attention on rows of several sentences; the contracts compare it with padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.data.packing import Packing
from nmt.models.layers.attention import AttentionConfig
from nmt.models.layers.basic import keep_mask
from nmt.models.layers.sentences import Packed
from nmt.models.transformer.multi_head import SelfAttention

LENGTHS = np.array([[5, 1, 9, 3], [7, 2, 4, 4]])


def test_dropout_on_the_weights_keeps_their_mean() -> None:
    """Over many draws the dropped-out attention is the plain one."""
    torch.manual_seed(1)
    config = AttentionConfig(d_model=8, heads=2, d_k=4, d_v=4, bias=True, dropout=0.5)
    attention = SelfAttention(config)
    pack = Packing.from_lengths(*LENGTHS).source
    x = torch.randn(int(LENGTHS[0].sum()), 8)

    def attended() -> Tensor:
        sentences = Packed(pack, attention=attention)
        return attention(x, sentences, causal=True).detach()

    dropped = torch.stack([attended() for _ in range(600)])
    attention.eval()
    assert not torch.equal(dropped[0], dropped[1])
    error = dropped.std(0) / 600**0.5
    assert ((dropped.mean(0) - attended()).abs() < 5 * error + 1e-5).all()


def test_the_mask_of_dropout_is_on_the_device_of_the_weights() -> None:
    assert keep_mask(torch.empty(2, 3, device="meta"), 0.5).device.type == "meta"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_is_that_of_numerical_differences(dropout: float) -> None:
    config = AttentionConfig(d_model=6, heads=2, d_k=3, d_v=3, bias=True, dropout=dropout)
    attention = SelfAttention(config).double().train()
    sentences = Packed(Packing.from_lengths(*LENGTHS).source, attention=attention)
    x = torch.randn(int(LENGTHS[0].sum()), 6, dtype=torch.float64, requires_grad=True)

    def attended(x: Tensor) -> Tensor:
        torch.manual_seed(1)  # the same draw of dropout
        return attention(x, sentences, causal=True)

    assert torch.autograd.gradcheck(attended, (x,), atol=1e-6)

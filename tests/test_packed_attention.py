"""Attention on packs by the kernels that a machine may have; the contracts compare with padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.data.packing import Packing
from nmt.models import architectures, packed_attention
from nmt.models.attention import Heads, SelfAttention, mix_values

LENGTHS = np.array([[5, 1, 9, 3], [7, 2, 4, 4]])


def attention_of_sentences(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    window_size: tuple[int, int],
) -> Tensor:
    """As ``torch.nn.attention.varlen.varlen_attn``, which runs on GPUs alone, is documented."""
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert longest_query == query_ends.diff().max()
    assert longest_key == key_ends.diff().max()
    mixed = []
    for sentence in range(len(query_ends) - 1):
        here = slice(int(query_ends[sentence]), int(query_ends[sentence + 1]))
        there = slice(int(key_ends[sentence]), int(key_ends[sentence + 1]))
        parts = (x.transpose(0, 1)[None] for x in (queries[here], keys[there], values[there]))
        output = mix_values(*parts, causal={(-1, 0): True, (-1, -1): False}[window_size])
        mixed.append(output[0].transpose(0, 1))
    return torch.cat(mixed)


def test_the_fused_kernel_of_a_gpu_gets_the_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = architectures["transformer_tiny"].build(50, 50, True).eval()
    packing = Packing.of(*LENGTHS)
    source, target = (torch.randint(4, 50, (int(side.sum()),)) for side in LENGTHS)
    expected = model.decode_packs(source, target, packing)
    called = []

    def has_flash(projected: Tensor, dropout: float) -> bool:
        called.append(dropout)
        return True

    monkeypatch.setattr(packed_attention, "_has_flash", has_flash)
    monkeypatch.setattr(packed_attention, "varlen_attn", attention_of_sentences)
    output = model.decode_packs(source, target, packing)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    assert called


def test_the_fused_kernel_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert not packed_attention._has_flash(torch.zeros(1, dtype=dtype), 0.0)


def test_dropout_on_the_weights_keeps_their_mean() -> None:
    """Over many draws the dropped-out attention is the plain one, and so is its gradient."""
    torch.manual_seed(1)
    heads = Heads(width=8, count=2, key_width=4, value_width=4, bias=True, dropout=0.5)
    attention = SelfAttention(heads)
    pack = Packing.of(*LENGTHS).source
    x = torch.randn(int(LENGTHS[0].sum()), 8, requires_grad=True)

    def output_and_gradient() -> Tensor:
        output = packed_attention.self_attention(attention, x, pack, causal=True)
        [gradient] = torch.autograd.grad(output.square().sum().sqrt(), x)
        return torch.stack((output.detach(), gradient))

    dropped = torch.stack([output_and_gradient()[0] for _ in range(600)])
    plain = attention.eval()
    expected = packed_attention.self_attention(plain, x, pack, causal=True)
    assert not torch.equal(dropped[0], dropped[1])
    error = dropped.std(0) / 600**0.5
    assert ((dropped.mean(0) - expected).abs() < 5 * error + 1e-5).all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_is_that_of_numerical_differences(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = Heads(width=6, count=2, key_width=3, value_width=3, bias=True, dropout=dropout)
    attention = SelfAttention(heads).double().train()
    pack = Packing.of(*LENGTHS).source
    x = torch.randn(int(LENGTHS[0].sum()), 6, dtype=torch.float64, requires_grad=True)

    def attended(x: Tensor) -> Tensor:
        torch.manual_seed(1)  # the same draw of dropout
        return packed_attention.self_attention(attention, x, pack, causal=True)

    assert torch.autograd.gradcheck(attended, (x,), atol=1e-6)

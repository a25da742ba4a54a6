"""A stand-in for the CUDA kernels below ``torch.nn.attention.varlen``, for CPUs.

It refuses what the kernels refuse, so that all but the kernels themselves is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def flash_attention_on_cpus() -> Iterator[None]:
    """Within the context torch's operators have the stand-in."""

    def forward(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        longest_query: int,
        longest_key: int,
        dropout: float,
        is_causal: bool,
        return_debug_mask: bool,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        lengths = (longest_query, longest_key)
        sentences = _checked((queries, keys, values), (query_ends, key_ends), lengths, dropout)
        assert options["window_size_left"] == -1
        assert options["window_size_right"] == (0 if is_causal else -1)
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for here, there in sentences:
            weights = _weights(queries[here], keys[there], is_causal)
            output[here] = torch.einsum("hqk,khc->qhc", weights, values[there].float()).to(
                output.dtype
            )
        state = torch.zeros(2, dtype=torch.uint64)
        sums = torch.zeros(queries.shape[1], len(queries))
        return output, sums, state, torch.empty(0), torch.empty(0)

    def backward(
        d_output: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        output: Tensor,
        sums: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        longest_query: int,
        longest_key: int,
        dropout: float,
        is_causal: bool,
        *states: Tensor,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        lengths = (longest_query, longest_key)
        sentences = _checked((queries, keys, values), (query_ends, key_ends), lengths, dropout)
        assert d_output.dtype == output.dtype == queries.dtype
        gradients = [torch.zeros(x.shape) for x in (queries, keys, values)]
        for here, there in sentences:
            weights = _weights(queries[here], keys[there], is_causal)
            d_mixed = d_output[here].float()
            gradients[2][there] = torch.einsum("hqk,qhc->khc", weights, d_mixed)
            d_weights = torch.einsum("qhc,khc->hqk", d_mixed, values[there].float())
            d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
            d_scores *= queries.shape[-1] ** -0.5
            gradients[0][here] = torch.einsum("hqk,khc->qhc", d_scores, keys[there].float())
            gradients[1][there] = torch.einsum("hqk,qhc->khc", d_scores, queries[here].float())
        return tuple(gradient.to(queries.dtype) for gradient in gradients)

    library = torch.library.Library("aten", "IMPL")
    exactly = torch.autocast("cpu", enabled=False)
    library.impl("_flash_attention_forward", exactly(forward), "CPU")
    library.impl("_flash_attention_backward", exactly(backward), "CPU")
    try:
        yield
    finally:
        library._destroy()


def _checked(
    vectors: tuple[Tensor, Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    dropout: float,
) -> list[tuple[slice, slice]]:
    """The queries and the keys of each sentence, of arguments that the kernels accept."""
    queries, keys, values = vectors
    assert dropout == 0.0
    assert queries.dtype in (torch.bfloat16, torch.float16)
    assert queries.dtype == keys.dtype == values.dtype
    assert all(x.stride(-1) == 1 for x in vectors)
    assert queries.shape[1:] == keys.shape[1:] == values.shape[1:]
    assert queries.shape[2] % 8 == 0
    assert queries.shape[2] <= 256
    for end, length, x in zip(ends, longest, (queries, keys), strict=True):
        assert end.dtype == torch.int32
        assert end.is_contiguous()
        assert isinstance(length, int)
        assert (int(end[0]), int(end[-1])) == (0, len(x))
        assert int(end.diff().max()) <= length
    parts = [
        [slice(*pair) for pair in zip(end[:-1].tolist(), end[1:].tolist(), strict=True)]
        for end in ends
    ]
    return list(zip(*parts, strict=True))


def _weights(queries: Tensor, keys: Tensor, is_causal: bool) -> Tensor:
    """Attention weights [H, Q, S] of a sentence, float32."""
    scores = torch.einsum("qhc,khc->hqk", queries.float(), keys.float()) * keys.shape[-1] ** -0.5
    if is_causal:
        assert len(queries) == len(keys)
        scores = scores.masked_fill(~torch.ones(scores.shape[1:], dtype=torch.bool).tril(), -1e30)
    return scores.softmax(-1)

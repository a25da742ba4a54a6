"""Attention on packs for GPUs: short sentences share the blocks that a kernel computes at once.

The kernels of torch give each sentence blocks of 128 tokens of its own, of which a usual sentence
fills a quarter. Here a block is 64 tokens of a pack, whatever sentences they belong to.

The module needs Triton, which torch for CUDA brings, and a C compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from nmt.models import attention_kernels as kernels

BLOCK = 64
"""Tokens of a block of queries, and of a block of keys."""

WARPS = 4
"""Groups of 32 threads that compute a block."""


class PackAttention(torch.autograd.Function):
    """Values mixed within each sentence, and their gradient.

    ``torch.compile`` reads through it, so that compiled code launches the kernels by itself.
    """

    @staticmethod
    def forward(
        ctx: Any,
        heads: int,
        causal: bool,
        query_sentences: Tensor,
        key_sentences: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        *parts: Tensor,
    ) -> Tensor:
        """Return the mixed values [P, H * C].

        Args:
            ctx: autograd's context.
            heads: H.
            causal: whether a query sees only the keys up to itself, of the same pack.
            query_sentences: [P] int32, the sentence of each token of the queries.
            key_sentences: [P'] int32, of the keys.
            query_ends: [B + 1] int32, the ends of the sentences of the queries, after a 0.
            key_ends: [B + 1] int32, of the keys.
            parts: queries, keys and values side by side [P, 3 * H * C]; or queries [P, H * C], and
                keys and values side by side [P', 2 * H * C]; contiguous. C is a power of two, at
                least 16.
        """
        queries, keys = parts[0], parts[-1]
        constants = _constants(parts, heads, causal)
        output = queries.new_empty(len(queries), constants["STRIDE"])
        # Logarithms of the sums of exponentials, which the gradient needs.
        log_sums = queries.new_empty(heads, len(queries), dtype=torch.float32)
        sentences = query_sentences, key_sentences
        with _on_device_of(queries):
            kernels.mix_values[triton.cdiv(len(queries), BLOCK), heads](
                *(queries, keys, output, log_sums, *sentences, key_ends, len(queries)),
                **constants,
            )
        ctx.heads, ctx.causal = heads, causal
        ctx.save_for_backward(*sentences, query_ends, key_ends, output, log_sums, *parts)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parts."""
        *packs, query_ends, key_ends, output, log_sums = ctx.saved_tensors[:6]
        parts = ctx.saved_tensors[6:]
        gradients = [torch.empty_like(part) for part in parts]
        queries, keys, heads = parts[0], parts[-1], ctx.heads
        constants = _constants(parts, heads, ctx.causal)
        d_output, dots = d_output.contiguous(), torch.empty_like(log_sums)
        with _on_device_of(queries):
            kernels.query_gradient[triton.cdiv(len(queries), BLOCK), heads](
                *(queries, keys, output, log_sums, d_output, gradients[0], dots),
                *(*packs, key_ends, len(queries)),
                **constants,
            )
            kernels.key_gradient[triton.cdiv(len(keys), BLOCK), heads](
                *(queries, keys, log_sums, d_output, gradients[-1], dots),
                *(*packs, query_ends, len(queries), len(keys)),
                **constants,
            )
        return *[None] * 6, *gradients


def _constants(parts: Sequence[Tensor], heads: int, causal: bool) -> dict[str, int]:
    width = sum(part.shape[1] for part in parts) // 3
    return {
        **{"Q_STRIDE": parts[0].shape[1], "KV_STRIDE": parts[-1].shape[1], "STRIDE": width},
        **{"WIDTH": width // heads, "CAUSAL": causal, "BLOCK": BLOCK, "num_warps": WARPS},
    }


def _on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Launch kernels on the device of `x`, as compiled code does by itself."""
    if torch.compiler.is_compiling():
        return nullcontext()
    return torch.cuda.device_of(x)  # type: ignore[no-untyped-call]

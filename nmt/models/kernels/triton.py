"""Triton kernels of attention on packs, after FlashAttention-2 (Dao 2023).

The kernels of torch give each sentence blocks of 128 tokens, of which a usual sentence fills a
quarter. Here several short sentences share a block of 64 tokens, and a mask keeps them apart. Needs
Triton, which torch for CUDA brings, and a C compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _range(at, tokens, sentences, ends, BLOCK: tl.constexpr):
    """Return begin and end, in the other pack, of the sentences of the block from token `at`."""
    # A block may begin and end inside sentences, so it meets the other side's tokens of all
    # sentences from the first to the last one.
    first = tl.load(sentences + at)
    last = tl.load(sentences + tl.minimum(at + BLOCK, tokens) - 1)
    return tl.load(ends + first), tl.load(ends + last + 1)


@triton.jit
def _vectors(base, tokens, stride, end, WIDTH: tl.constexpr):
    """Return the vectors [BLOCK, WIDTH] of some tokens; zeros from `end` on."""
    places = base + tokens[:, None].to(tl.int64) * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(places, mask=tokens[:, None] < end, other=0.0)


@triton.jit
def _store(base, tokens, stride, end, vectors, WIDTH: tl.constexpr):
    """Write the vectors [BLOCK, WIDTH] of the tokens before `end`."""
    # In int64, because a large pack has more than 2^31 numbers.
    places = base + tokens[:, None].to(tl.int64) * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(places, vectors.to(base.dtype.element_ty), mask=tokens[:, None] < end)


@triton.jit
def _product(a, b):
    """Return the matrix product in float32; float32 is not rounded to TF32."""
    # TF32 keeps 10 bits of a float32, which would make fp32 training less exact than asked.
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _scale(WIDTH: tl.constexpr):
    """Return the factor of scores, 1 / sqrt(WIDTH)."""
    return 1.0 / tl.sqrt(tl.full((), WIDTH, tl.float32))


@triton.jit
def _scores(queries, keys, of_queries, of_keys, q, k, WIDTH: tl.constexpr, CAUSAL: tl.constexpr):
    """Return scores [Q, K] to base 2, very low where a query does not see a key.

    A GPU computes powers of 2 faster than powers of e.

    They are finite, or the difference of two would be NaN.
    """
    seen = of_queries[:, None] == of_keys[None, :]
    if CAUSAL:
        seen = seen & (keys[None, :] <= queries[:, None])
    # exp2 is one instruction of a GPU; the factor turns powers of e into powers of two.
    log2_e = 1.4426950408889634
    # Finite, because -inf minus -inf is NaN where a query sees no key of a block.
    return tl.where(seen, _product(q, tl.trans(k)) * (_scale(WIDTH) * log2_e), -1.0e30)


@triton.jit
def attend(
    q, kv, output, log_sums, query_sentences, key_sentences, key_ends, query_count,
    Q_STRIDE: tl.constexpr, KV_STRIDE: tl.constexpr, STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mix the values for a block of queries; keep the logarithms of sums of exponentials."""
    at, head = tl.program_id(0) * BLOCK, tl.program_id(1)
    k = kv + (KV_STRIDE - 2 * STRIDE) + head * WIDTH
    v = k + STRIDE
    queries = at + tl.arange(0, BLOCK)
    begin, end = _range(at, query_count, query_sentences, key_ends, BLOCK)
    if CAUSAL:
        end = tl.minimum(end, at + BLOCK)
    of_queries = tl.load(query_sentences + queries, mask=queries < query_count, other=-2)
    q_block = _vectors(q + head * WIDTH, queries, Q_STRIDE, query_count, WIDTH)
    # Finite, because -inf minus -inf is NaN when the sums are rescaled.
    highest = tl.full((BLOCK,), -1.0e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    attended = tl.zeros((BLOCK, WIDTH), tl.float32)
    for first in range(begin, end, BLOCK):
        keys = first + tl.arange(0, BLOCK)
        of_keys = tl.load(key_sentences + keys, mask=keys < end, other=-1)
        k_block = _vectors(k, keys, KV_STRIDE, end, WIDTH)
        v_block = _vectors(v, keys, KV_STRIDE, end, WIDTH)
        scores = _scores(queries, keys, of_queries, of_keys, q_block, k_block, WIDTH, CAUSAL)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        # Products in the inputs' dtype, as tensor cores take them; sums in float32.
        attended = attended * shrink[:, None] + _product(weights.to(v_block.dtype), v_block)
        highest = higher
    # A sentence may have no keys: its queries get zeros, and all weights of their gradient are 0.
    has_keys = highest > -1.0e29
    attended = tl.where(has_keys[:, None], attended / total[:, None], 0.0)
    log_sum = tl.where(has_keys, highest + tl.log2(total), 0.0)
    _store(output + head * WIDTH, queries, STRIDE, query_count, attended, WIDTH)
    places = log_sums + head * query_count + queries
    tl.store(places, log_sum, mask=queries < query_count)


@triton.jit
def query_gradient(
    q, kv, output, log_sums, d_output, d_q, dots, query_sentences, key_sentences, key_ends,
    query_count,
    Q_STRIDE: tl.constexpr, KV_STRIDE: tl.constexpr, STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of queries; keep the dots of outputs with their gradients."""
    at, head = tl.program_id(0) * BLOCK, tl.program_id(1)
    # After the queries, if all three lie side by side; else at the beginning.
    k = kv + (KV_STRIDE - 2 * STRIDE) + head * WIDTH
    v = k + STRIDE
    queries = at + tl.arange(0, BLOCK)
    begin, end = _range(at, query_count, query_sentences, key_ends, BLOCK)
    # No query of the block sees a later key.
    if CAUSAL:
        end = tl.minimum(end, at + BLOCK)
    is_query = queries < query_count
    # -2 here and -1 for keys: places beyond the ends match nothing.
    of_queries = tl.load(query_sentences + queries, mask=is_query, other=-2)
    q_block = _vectors(q + head * WIDTH, queries, Q_STRIDE, query_count, WIDTH)
    d_block = _vectors(d_output + head * WIDTH, queries, STRIDE, query_count, WIDTH)
    outputs = _vectors(output + head * WIDTH, queries, STRIDE, query_count, WIDTH)
    # The sum of weights times their gradients equals output times its gradient, which needs no
    # scores (Dao et al. 2022).
    dot = tl.sum(outputs.to(tl.float32) * d_block.to(tl.float32), 1)
    tl.store(dots + head * query_count + queries, dot, mask=is_query)
    log_sum = tl.load(log_sums + head * query_count + queries, mask=is_query, other=0.0)
    gradient = tl.zeros((BLOCK, WIDTH), tl.float32)
    for first in range(begin, end, BLOCK):
        keys = first + tl.arange(0, BLOCK)
        of_keys = tl.load(key_sentences + keys, mask=keys < end, other=-1)
        k_block = _vectors(k, keys, KV_STRIDE, end, WIDTH)
        v_block = _vectors(v, keys, KV_STRIDE, end, WIDTH)
        scores = _scores(queries, keys, of_queries, of_keys, q_block, k_block, WIDTH, CAUSAL)
        weights = tl.exp2(scores - log_sum[:, None])
        d_weights = _product(d_block, tl.trans(v_block))
        # The gradient of a softmax; `dot` is the sum of the weights times their gradients.
        d_scores = weights * (d_weights - dot[:, None])
        gradient += _product(d_scores.to(k_block.dtype), k_block)
    gradient *= _scale(WIDTH)
    _store(d_q + head * WIDTH, queries, Q_STRIDE, query_count, gradient, WIDTH)


@triton.jit
def key_gradient(
    q, kv, log_sums, d_output, d_kv, dots, query_sentences, key_sentences, query_ends,
    query_count, key_count,
    Q_STRIDE: tl.constexpr, KV_STRIDE: tl.constexpr, STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and values, given the dots of the queries."""
    at, head = tl.program_id(0) * BLOCK, tl.program_id(1)
    k = kv + (KV_STRIDE - 2 * STRIDE) + head * WIDTH
    v = k + STRIDE
    keys = at + tl.arange(0, BLOCK)
    begin, end = _range(at, key_count, key_sentences, query_ends, BLOCK)
    if CAUSAL:
        # Earlier queries never see these keys.
        begin = tl.maximum(begin, at)
    of_keys = tl.load(key_sentences + keys, mask=keys < key_count, other=-1)
    k_block = _vectors(k, keys, KV_STRIDE, key_count, WIDTH)
    v_block = _vectors(v, keys, KV_STRIDE, key_count, WIDTH)
    of_key = tl.zeros((BLOCK, WIDTH), tl.float32)
    of_value = tl.zeros((BLOCK, WIDTH), tl.float32)
    for first in range(begin, end, BLOCK):
        queries = first + tl.arange(0, BLOCK)
        is_query = queries < end
        of_queries = tl.load(query_sentences + queries, mask=is_query, other=-2)
        q_block = _vectors(q + head * WIDTH, queries, Q_STRIDE, end, WIDTH)
        d_block = _vectors(d_output + head * WIDTH, queries, STRIDE, end, WIDTH)
        places = head * query_count + queries
        log_sum = tl.load(log_sums + places, mask=is_query, other=0.0)
        dot = tl.load(dots + places, mask=is_query, other=0.0)
        scores = _scores(queries, keys, of_queries, of_keys, q_block, k_block, WIDTH, CAUSAL)
        weights = tl.exp2(scores - log_sum[:, None])
        of_value += _product(tl.trans(weights.to(d_block.dtype)), d_block)
        d_weights = _product(d_block, tl.trans(v_block))
        d_scores = weights * (d_weights - dot[:, None])
        of_key += _product(tl.trans(d_scores.to(q_block.dtype)), q_block)
    of_key *= _scale(WIDTH)
    d_k = d_kv + (KV_STRIDE - 2 * STRIDE) + head * WIDTH
    _store(d_k, keys, KV_STRIDE, key_count, of_key, WIDTH)
    _store(d_k + STRIDE, keys, KV_STRIDE, key_count, of_value, WIDTH)


BLOCK = 64
"""Tokens of a block of queries, and of a block of keys."""

WARPS = 4
"""Groups of 32 threads that compute a block."""


class PackAttention(torch.autograd.Function):
    """Attention within each sentence, and its gradient.

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
        """Return the weighted means of the values [P, H * C].

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
        with on_device_of(queries):
            attend[triton.cdiv(len(queries), BLOCK), heads](
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
        # Kernels write every element, so nothing needs to be zeroed first.
        gradients = [torch.empty_like(part) for part in parts]
        queries, keys, heads = parts[0], parts[-1], ctx.heads
        constants = _constants(parts, heads, ctx.causal)
        d_output, dots = d_output.contiguous(), torch.empty_like(log_sums)
        with on_device_of(queries):
            query_gradient[triton.cdiv(len(queries), BLOCK), heads](
                *(queries, keys, output, log_sums, d_output, gradients[0], dots),
                *(*packs, key_ends, len(queries)),
                **constants,
            )
            key_gradient[triton.cdiv(len(keys), BLOCK), heads](
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


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Launch kernels on the device of `x`, as compiled code does by itself."""
    if torch.compiler.is_compiling():
        return nullcontext()
    return torch.cuda.device_of(x)

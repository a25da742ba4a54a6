"""Attention on packs for GPUs: short sentences share the blocks that a kernel computes at once.

The kernels of torch give each sentence blocks of 128 tokens of its own, of which a usual sentence
fills a quarter. Here a block is 64 tokens of a pack, whatever sentences they belong to.

The module needs Triton, which torch for CUDA brings, and a C compiler.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from nmt.models import attention_kernels as kernels

BLOCK = 64
"""Tokens of a block of queries, and of a block of keys."""

WARPS = 4
"""Groups of 32 threads that compute a block."""


@torch.library.custom_op("nmt::attend_to_packs", mutates_args=())
def attend_to_packs(
    parts: list[Tensor], sentences: list[Tensor], ends: list[Tensor], heads: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the values [P, H * C], mixed within each sentence, and what the gradient needs.

    Args:
        parts: tensors in which queries, keys and values lie side by side: [P, 3 * H * C]; or
            [P, H * C] and [P', 2 * H * C]; or three. C is a power of two, at least 16.
        sentences: [P] and [P'] int32, the sentence of each token, of queries and of keys.
        ends: [B + 1] int32 each, the ends of the sentences in both packs, after a 0.
        heads: H.
        causal: whether a query sees only the keys up to itself, of the same pack.

    Returns:
        The mixed values, and the logarithms of the sums of exponentials [H, P] float32.
    """
    queries, keys, values = _apart([part.contiguous() for part in parts])
    output = queries.new_empty(queries.shape)
    log_sums = queries.new_empty(heads, len(queries), dtype=torch.float32)
    with torch.cuda.device_of(queries):  # type: ignore[no-untyped-call]
        kernels.mix_values[triton.cdiv(len(queries), BLOCK), heads](
            *(queries, keys, values, output, log_sums, *sentences, ends[1]),
            *(len(queries), queries.stride(0), keys.stride(0), output.stride(0)),
            _scales(queries, heads)[0],
            **_constants(queries, heads, causal),
        )
    return output, log_sums


@torch.library.custom_op("nmt::attend_to_packs_backward", mutates_args=())
def _backward(
    d_output: Tensor,
    parts: list[Tensor],
    output: Tensor,
    log_sums: Tensor,
    sentences: list[Tensor],
    ends: list[Tensor],
    heads: int,
    causal: bool,
) -> list[Tensor]:
    """Return the gradients of the parts; the other arguments are those of the forward pass."""
    parts = [part.contiguous() for part in parts]
    gradients = [torch.empty_like(part) for part in parts]
    (queries, keys, values), (d_queries, d_keys, d_values) = _apart(parts), _apart(gradients)
    d_output, dots = d_output.contiguous(), torch.empty_like(log_sums)
    strides = queries.stride(0), keys.stride(0), output.stride(0)
    scales = _scales(queries, heads)
    constants = _constants(queries, heads, causal)
    with torch.cuda.device_of(queries):  # type: ignore[no-untyped-call]
        kernels.query_gradient[triton.cdiv(len(queries), BLOCK), heads](
            *(queries, keys, values, output, log_sums, d_output, d_queries, dots),
            *(*sentences, ends[1], len(queries), *strides, *scales),
            **constants,
        )
        kernels.key_gradient[triton.cdiv(len(keys), BLOCK), heads](
            *(queries, keys, values, log_sums, d_output, d_keys, d_values, dots),
            *(*sentences, ends[0], len(queries), len(keys), *strides, *scales),
            **constants,
        )
    return gradients


def try_triton() -> None:
    """Compile and run a kernel on the current GPU; raises whatever Triton raises."""
    kernels.fill[(1,)](torch.empty(1, device="cuda"))


def _apart(parts: list[Tensor]) -> list[Tensor]:
    """Return queries, keys and values, each a view [P, H * C] of the parts."""
    width = _width(parts)
    return [columns for part in parts for columns in part.chunk(part.shape[1] // width, 1)]


def _width(parts: list[Tensor]) -> int:
    """Return H * C."""
    return sum(part.shape[1] for part in parts) // 3


def _scales(queries: Tensor, heads: int) -> tuple[float, float]:
    """Return the factor of scores, for powers of two, and the same for powers of e."""
    natural = (queries.shape[1] // heads) ** -0.5
    return natural * math.log2(math.e), natural


def _constants(queries: Tensor, heads: int, causal: bool) -> dict[str, int]:
    width = queries.shape[1] // heads
    return {"WIDTH": width, "CAUSAL": causal, "BLOCK": BLOCK, "num_warps": WARPS}


@attend_to_packs.register_fake
def _shapes(
    parts: list[Tensor], sentences: list[Tensor], ends: list[Tensor], heads: int, causal: bool
) -> tuple[Tensor, Tensor]:
    queries = parts[0]
    log_sums = queries.new_empty(heads, len(queries), dtype=torch.float32)
    return queries.new_empty(len(queries), _width(parts)), log_sums


@_backward.register_fake
def _shapes_of_gradients(d_output: Tensor, parts: list[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in parts]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, sentences, ends, ctx.heads, ctx.causal = inputs
    ctx.count = len(parts)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*parts, *output, *sentences, *ends)


def _gradients(ctx: Any, d_output: Tensor, _: None) -> tuple[Any, ...]:
    parts, rest = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    output, log_sums, *packs = rest
    gradients = _backward(
        d_output, [*parts], output, log_sums, packs[:2], packs[2:], ctx.heads, ctx.causal
    )
    return gradients, [None, None], [None, None], None, None


attend_to_packs.register_autograd(_gradients, setup_context=_keep)

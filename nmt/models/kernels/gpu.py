"""Attention on packs by kernels of a GPU that store no scores, and where there are such kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature

import torch
from torch import Tensor, nn

from nmt.data.packing import Pack
from nmt.runtime.own_kernels import has_own_kernels, is_chosen


def has_flash(
    device: torch.device, dtype: torch.dtype, widths: tuple[int, int], dropout: float
) -> bool:
    """Return whether torch 2.11 has a fused attention on packs: in half precision on a newer GPU.

    Args:
        device: of the queries.
        dtype: of the queries.
        widths: of a head of queries and keys, and of one of values.
        dropout: dropout rate on the attention weights.
    """
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        # FlashAttention's limits of a head's width.
        and widths[0] == widths[1]
        and widths[0] % 8 == 0
        and widths[0] <= 256
        # torch's attention on sequences of varying length has no dropout.
        and dropout == 0.0
        # What is being compiled is compilable, and the compiler cannot ask the GPU.
        and (torch.compiler.is_compiling() or _is_newer_gpu(device))
    )


def _is_newer_gpu(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0) and _has_varlen_attn()


@cache
def _has_varlen_attn() -> bool:
    """Return whether this torch has attention on sequences of varying length, with windows.

    Imported only on a GPU: the import takes a second.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in signature(varlen_attn).parameters  # torch 2.10 has none


TORCH_BLOCK = 128
"""Tokens of a block of torch's kernels, which belong to one sentence."""


def fits_own_kernels(packs: tuple[Pack, Pack], width: int) -> bool:
    """Return whether :mod:`nmt.models.kernels.triton` is better: heads fit, sentences are short.

    Args:
        packs: of the queries and of the keys.
        width: C, of a head.
    """
    sentences = len(packs[0].ends) - 1
    # By the mean length: longer sentences fill torch's blocks of 128 as well.
    is_short = all(len(pack.sentence_of_tokens) < TORCH_BLOCK * sentences for pack in packs)
    return (
        packs[0].device.type == "cuda" and is_short and width in (16, 32, 64) and has_own_kernels()
    )


def own_attention(
    parts: tuple[Tensor, ...], packs: tuple[Pack, Pack], heads: int, causal: bool
) -> Tensor:
    """Return what :func:`flash_attention` returns, by :mod:`nmt.models.kernels.triton`."""
    from nmt.models.kernels.triton import PackAttention

    # The kernels step over keys and values that lie side by side.
    if len(parts) == 3:
        parts = parts[0], torch.cat(parts[1:], 1)
    attended: Tensor = PackAttention.apply(  # type: ignore[no-untyped-call]
        heads,
        causal,
        *(pack.sentence_of_tokens for pack in packs),
        *(pack.ends for pack in packs),
        *(part.contiguous() for part in parts),
    )
    return attended


def flash_attention(
    parts: tuple[Tensor, ...], packs: tuple[Pack, Pack], heads: int, causal: bool
) -> Tensor:
    """Return the weighted means of the values [P, H * C] by kernels that store no scores.

    Args:
        parts: queries, keys and values side by side [P, 3 * H * C]; or queries [P, H * C], and keys
            and values side by side [P', 2 * H * C]; or all three apart.
        packs: of the queries and of the keys.
        heads: H.
        causal: whether a query sees only the keys up to itself.
    """
    from torch.nn.attention.varlen import varlen_attn

    of_queries, of_keys = packs
    width = sum(part.shape[1] for part in parts) // (3 * heads)
    queries, keys, values = (
        vectors for part in parts for vectors in part.view(len(part), -1, heads, width).unbind(1)
    )
    attended = varlen_attn(
        queries,
        keys,
        values,
        of_queries.ends,
        of_keys.ends,
        of_queries.longest,
        of_keys.longest,
        # Reach to the left and to the right, -1 for no limit: (-1, 0) is the causal mask.
        window_size=(-1, 0) if causal else (-1, -1),
    )
    assert isinstance(attended, Tensor)  # no logarithms of sums are asked for
    return attended.flatten(1)


def own_add_norm(
    x: Tensor, sublayer: Tensor, norm: Callable[[Tensor], Tensor], alpha: float, dropout: nn.Module
) -> Tensor | None:
    """Return LayerNorm(alpha x + Dropout(sublayer)) by one kernel; None if it is not chosen.

    Args:
        x: the residual stream [..., D].
        sublayer: the sublayer's output [..., D].
        norm: the norm, which may be of another kind.
        alpha: factor of the stream.
        dropout: the :class:`nmt.models.layers.basic.Dropout`.
    """
    if not _is_used("add_norm", x) or type(norm) is not nn.LayerNorm:
        return None
    from nmt.models.kernels.sublayers import AddNorm

    rate = dropout.rate if dropout.training else 0.0
    normalised: Tensor = AddNorm.apply(  # type: ignore[no-untyped-call]
        *(x.contiguous(), sublayer, norm.weight, norm.bias, alpha, rate, norm.eps)
    )
    return normalised


def _is_used(name: str, x: Tensor) -> bool:
    # torch fuses what surrounds a norm or an activation by itself when it compiles.
    return is_chosen(name) and x.is_cuda and not torch.compiler.is_compiling()


def own_linear_relu(x: Tensor, linear: nn.Linear) -> Tensor | None:
    """Return max(0, x W + b) [P, F] by a product that does all three; None if it is not chosen.

    Args:
        x: the inputs [P, D].
        linear: the layer, with a bias.
    """
    if not _is_used("feed_forward", x) or type(linear) is not nn.Linear:
        return None
    from nmt.models.kernels.sublayers import LinearRelu

    dtype = compute_dtype(x.device)
    # Casts outside the function, so that weights get gradients in their own dtype.
    inputs = (part.to(dtype) for part in (x, linear.weight, linear.bias))
    activations: Tensor = LinearRelu.apply(*inputs)  # type: ignore[no-untyped-call]
    return activations


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of projections on a device: float32, or the dtype of autocast."""
    is_low = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_low else torch.float32

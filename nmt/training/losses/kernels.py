"""Triton kernel for GPUs: softmax, cross-entropy and gradient of a slice of logits at once.

The kernel reads each logit twice, the second time mostly from a cache, and writes its gradient
once. As operators of torch the same takes some twenty kernels. The module needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.data.vocabulary import PAD


# The stride is the number of tokens; Triton would compile anew for multiples of 16.
@triton.jit(do_not_specialize=["terms_stride"])
def cross_entropy(
    logits, labels, weights, terms, terms_stride, on_label, on_pad,
    VOCABULARY: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    WANTS_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the terms of the loss of a token, and the gradient in place of its logits."""
    token = tl.program_id(0)
    logits += token.to(tl.int64) * STRIDE
    label = tl.load(labels + token)
    # Before the logits are overwritten, which other threads may begin earlier.
    of_label = tl.load(logits + label).to(tl.float32)
    of_padding = tl.load(logits + PAD).to(tl.float32)
    highest = -3.0e38  # finite, or the difference of two would be NaN
    total = 0.0
    for first in range(0, VOCABULARY, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < VOCABULARY, other=-float("inf"))
        x = x.to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 0))
        # Online softmax: maximum and sum in one pass over the logits.
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), 0)
        highest = higher
    log_total = tl.log(total)
    log_z = highest + log_total
    # Not log_z - of_label: the sum in log_z would round away the small loss of a likely label.
    tl.store(terms + token, (highest - of_label) + log_total)
    tl.store(terms + terms_stride + token, log_z)
    tl.store(terms + 2 * terms_stride + token, of_padding)
    if WANTS_GRADIENT:
        weight = 1.0
        if weights is not None:
            weight = tl.load(weights + token)
        for first in range(0, VOCABULARY, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            inside = columns < VOCABULARY
            p = tl.exp(tl.load(logits + columns, mask=inside).to(tl.float32) - log_z)
            p -= tl.where(columns == label, on_label, 0.0) + tl.where(columns == PAD, on_pad, 0.0)
            tl.store(logits + columns, (p * weight).to(logits.dtype.element_ty), mask=inside)


BLOCK = 8192
"""Logits of a token that are computed at once."""

WARPS = 8
"""Groups of 32 threads that compute a token."""


def differentiate_(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    on_label: float,
    on_pad: float,
    wants_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`nmt.training.losses.output_layer.differentiate_` in one kernel."""
    terms = logits.new_empty(3, len(logits), dtype=torch.float32)
    with torch.cuda.device_of(logits):
        cross_entropy[(len(logits),)](
            *(logits, labels, weights, terms, terms.stride(0), on_label, on_pad),
            VOCABULARY=logits.shape[1],
            STRIDE=logits.stride(0),
            PAD=PAD,
            WANTS_GRADIENT=wants_gradient,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return terms, logits

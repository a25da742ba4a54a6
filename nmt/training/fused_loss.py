"""Softmax, loss and gradient of a slice of logits at once, for GPUs.

The kernel reads each logit twice, the second time mostly from a cache, and writes its gradient
once. As operators of torch the same takes some twenty kernels. The module needs Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.data.vocabulary import PAD
from nmt.training import loss_kernels as kernels
from nmt.training.output_slices import Masses

BLOCK = 8192
"""Logits of a token that are computed at once."""

WARPS = 8
"""Groups of 32 threads that compute a token."""


def differentiate_(
    logits: Tensor,
    labels: Tensor,
    masses: Masses,
    weights: Tensor | None,
    terms: Tensor,
    wants_gradient: bool,
) -> Tensor:
    """Compute the same as :func:`nmt.training.sliced_loss.differentiate_`, in one kernel."""
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        kernels.cross_entropy[(len(logits),)](
            *(logits, labels, weights, terms, terms.stride(0)),
            *(masses.label - masses.other, masses.pad - masses.other),
            VOCABULARY=logits.shape[1],
            PAD=PAD,
            WANTS_GRADIENT=wants_gradient,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return logits

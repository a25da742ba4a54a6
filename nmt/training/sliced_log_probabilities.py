"""Output layer and log-probabilities of labels, a slice of tokens at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.training.output_slices import SLICE_ELEMENTS, in_autocast_dtype


def log_probabilities(decoder_output: Tensor, output: nn.Linear, labels: Tensor) -> Tensor:
    """Return the log-probability of each label, in nats: [P] float32.

    Computes the logits of one slice of tokens at a time, and again for the gradient.

    Args:
        decoder_output: decoder output [P, D].
        output: the model's output layer [V, D].
        labels: [P] int64.
    """
    rows = max(1, SLICE_ELEMENTS[decoder_output.device.type] // output.out_features)
    parts = [
        checkpoint(
            _log_probabilities,
            decoder_output[first : first + rows],
            output.weight,
            output.bias,
            labels[first : first + rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for first in range(0, max(1, len(decoder_output)), rows)
    ]
    return torch.cat(parts)


def _log_probabilities(
    decoder_output: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
    with torch.autocast(decoder_output.device.type, enabled=False):
        logits = F.linear(inputs, matrix, offset).float()
        return -F.cross_entropy(logits, labels, reduction="none")

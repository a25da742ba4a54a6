"""Convolutions over sentences as linear layers over windows of neighbours.

Training computes all windows of a sentence at once. Decoding computes the window that ends in the
newest position. Both multiply by the same matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from nmt.data.packing import Pack


def windows(
    x: Tensor,
    kernel: int,
    dilation: int = 1,
    causal: bool = False,
    sentences: Tensor | Pack | None = None,
) -> Tensor:
    """Concatenate the neighbours of every position.

    Args:
        x: padded sentences [B, T, C], or a pack [P, C].
        kernel: positions in a window, odd unless causal.
        dilation: distance between the positions of a window.
        causal: whether a window ends with its position; otherwise the position is in the middle.
        sentences: the pack of `x`; or [B, T, 1], 0 at padding, else 1. Causal windows of padded
            sentences need none.

    Returns:
        [..., kernel * C], the first position's features first; zeros beyond the edges of a
        sentence.
    """
    if isinstance(sentences, Tensor):
        # Padding must be zero before it is read as a neighbour, or it would change real tokens.
        x = x * sentences
    reach = (kernel - 1) * dilation
    before = reach if causal else reach // 2
    padded = F.pad(x, (0, 0, before, reach - before))
    # Views of one padded tensor; a linear layer over them equals a convolution.
    shifted = [padded.narrow(-2, at * dilation, x.shape[-2]) for at in range(kernel)]
    if isinstance(sentences, Pack):
        shifted = [
            # In a pack the neighbour may be a token of the next sentence, which counts as zero.
            neighbours * sentences.has_neighbour(at * dilation - before)[:, None]
            for at, neighbours in enumerate(shifted)
        ]
    return torch.cat(shifted, dim=-1)


def no_past(rows: int, width: int, kernel: int, dilation: int, like: Tensor) -> Tensor:
    """Return the past of a causal convolution before its first input: zeros [N, W, C], W inputs."""
    return like.new_zeros(rows, (kernel - 1) * dilation, width)


def extend_past(past: Tensor, x: Tensor, dilation: int = 1) -> tuple[Tensor, Tensor]:
    """Return the window [N, kernel * C] that ends in `x` [N, C], and the past after `x`."""
    inputs = torch.cat((past, x[:, None]), dim=1)
    # The past reaches back to the window's oldest input, so it has the inputs between, too.
    return inputs[:, ::dilation].flatten(1), inputs[:, 1:]


class _WeightNorm(nn.Module):
    """Weight normalisation: weight = gain * direction / |direction|, with a gain for every output.

    Without gradients, as in search, the weight is cached until gain or direction changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: tuple[tuple[int, ...], Tensor] | None = None

    def forward(self, gain: Tensor, direction: Tensor) -> Tensor:
        """Return the weight for this gain and direction, cached if no gradient is needed."""
        if torch.is_grad_enabled():
            self._kept = None
            return self._weight(gain, direction)
        # In-place changes raise the version and replaced storage changes the pointer; without both,
        # search would use old weights after an update.
        version = (gain._version, direction._version, gain.data_ptr(), direction.data_ptr())
        if self._kept is None or self._kept[0] != version:
            self._kept = (version, self._weight(gain, direction))
        return self._kept[1]

    @staticmethod
    def _weight(gain: Tensor, direction: Tensor) -> Tensor:
        weight: Tensor = direction * (gain / direction.norm(dim=1, keepdim=True))
        return weight

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        # The direction keeps its length, which the forward pass divides by.
        return weight.norm(dim=1, keepdim=True), weight


def weight_normalised(linear: nn.Linear) -> nn.Linear:
    """Split the weight of a layer into a gain [out, 1] and a direction; return the same layer.

    The layer still computes the same function. Source: Salimans and Kingma 2016.
    """
    parametrize.register_parametrization(linear, "weight", _WeightNorm())
    return linear

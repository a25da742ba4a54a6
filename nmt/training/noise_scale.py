"""The gradient noise scale (McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*).

The simple noise scale, tr(S) / |G|^2, compares the covariance S of a token's gradient with the
gradient G. An update of far fewer tokens is mostly noise; one of far more wastes tokens.
"""

from __future__ import annotations

from torch import Tensor


def squared_gradient_and_variance(
    small: Tensor, large: Tensor, small_tokens: int, large_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return unbiased estimates of |G|^2 and tr(S) (the paper's appendix A.1).

    Args:
        small: squared norm of the mean gradient of a part of the tokens.
        large: squared norm of the mean gradient of all tokens.
        small_tokens: number of tokens of the part, fewer than all.
        large_tokens: number of all tokens.
    """
    squared = (large_tokens * large - small_tokens * small) / (large_tokens - small_tokens)
    variance = (small - large) / (1 / small_tokens - 1 / large_tokens)
    return squared, variance

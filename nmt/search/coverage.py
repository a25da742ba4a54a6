"""The coverage penalty: outputs that leave parts of the source unattended rank lower.

Of GNMT (Wu et al. 2016, equation 14). It is added once hypotheses are found, in one pass over all
of them, so that no step of a search has to keep its attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nmt.data.batches import as_rows, target_input
from nmt.data.vocabulary import EOS, PAD
from nmt.models.base import Model
from nmt.search.base import Hypothesis, best_first

LEAST = 1e-9
"""Attention that a source token has at least: the logarithm of none would forbid an output."""


def with_coverage(
    found: Sequence[Sequence[Hypothesis]], model: Model, source: Tensor, beta: float
) -> list[list[Hypothesis]]:
    """The same hypotheses, best first by their scores with the coverage penalty.

    beta * sum over source tokens of log min(attention of all steps, 1); EOS need not be covered.

    Args:
        found: for each sentence, what a search found.
        model: with attention; in the mode and contexts of the caller.
        source: [B, S] int64, as the search was given it.
        beta: what the sum is multiplied by; from 0.

    Raises:
        NmtError: the model has no attention.
    """
    sentences = [at for at, each in enumerate(found) for _ in each]
    target = as_rows([it.output for each in found for it in each]).to(source.device)
    source = source[sentences]  # [N, S]
    weights = model.source_attention(source, target_input(target)).float()  # [N, T, S]
    covered = (weights * (target != PAD)[..., None]).sum(1)
    logarithms = covered.clamp(LEAST, 1.0).log()
    is_token = (source != PAD) & (source != EOS)
    penalties = iter((beta * (logarithms * is_token).sum(1)).tolist())
    ranked = [[replace(it, score=it.score + next(penalties)) for it in each] for each in found]
    return [best_first(each, len(each)) for each in ranked]

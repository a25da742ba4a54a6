"""The coverage penalty: outputs that leave parts of the source unattended rank lower.

The penalty is GNMT's (Wu et al. 2016, equation 14). It is added after the search, in one pass over
all hypotheses, so that the search does not have to store attention weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nmt.data.batches import as_rows, target_input
from nmt.data.vocabulary import EOS, PAD
from nmt.models.base import Model
from nmt.search.hypotheses import Hypothesis, best_first

MIN_ATTENTION = 1e-9
"""Lower bound on the attention of a source token: log(0) would exclude the output."""


def with_coverage(
    lists: Sequence[Sequence[Hypothesis]], model: Model, source: Tensor, beta: float
) -> list[list[Hypothesis]]:
    """Add the coverage penalty to the scores of hypotheses, and sort them again.

    The penalty is beta * sum over source tokens of log min(attention summed over steps, 1). EOS
    does not need to be covered.

    Args:
        lists: the hypotheses of each sentence.
        model: with attention; used in its current mode, under the caller's contexts.
        source: [B, S] int64, the source of the search.
        beta: weight of the penalty, from 0.

    Returns:
        The same hypotheses with their new scores, best first.

    Raises:
        NmtError: the model has no attention.
    """
    sentences = [at for at, hypotheses in enumerate(lists) for _ in hypotheses]
    outputs = [hypothesis.output for hypotheses in lists for hypothesis in hypotheses]
    target = as_rows(outputs).to(source.device)
    source = source[sentences]  # [N, S]
    weights = model.source_attention(source, target_input(target)).float()  # [N, T, S]
    covered = (weights * (target != PAD)[..., None]).sum(1)
    logarithms = covered.clamp(MIN_ATTENTION, 1.0).log()
    is_token = (source != PAD) & (source != EOS)
    penalties = iter((beta * (logarithms * is_token).sum(1)).tolist())
    penalised = [
        [replace(hypothesis, score=hypothesis.score + next(penalties)) for hypothesis in hypotheses]
        for hypotheses in lists
    ]
    return [best_first(hypotheses, len(hypotheses)) for hypotheses in penalised]

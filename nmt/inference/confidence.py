"""Fit the confidence in translations on the validation set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nmt.data.dataset import Split
from nmt.evaluation.metrics import metrics
from nmt.inference.lines import LineTranslator
from nmt.runs.confidence import Bin, Confidence, Features, features_of

FOLDS = 5
"""Parts of the lines; the reliability of each part is measured with a fit of the other parts."""

BINS = 10

RIDGE = 1.0
"""Weight of the squared weights, which keeps them finite where the lines are separable."""

Values = npt.NDArray[np.float64]


def measure_confidence(
    translator: LineTranslator, split: Split, sentences: int
) -> Confidence | None:
    """Translate a held-out split and fit the confidence in its translations.

    Args:
        translator: searches as users will do.
        split: pairs with their text.
        sentences: largest number of pairs, spread over the split.

    Returns:
        The confidence; None of fewer than 10 lines that are not blank, or of a model of documents,
        which does not score lines.
    """
    if translator.subwords.context is not None:
        return None
    sources, references = split.source_text(), split.reference_text()
    indices = np.unique(np.linspace(0, len(split) - 1, sentences).astype(np.int64)).tolist()
    indices = [at for at in indices if sources[at].strip()]
    if len(indices) < 2 * FOLDS:
        return None
    best = []
    if (numbers := split.directions) is None:
        lists = translator.translations([sources[at] for at in indices], scored=True)
        best = [first for first, *_ in lists]
    else:
        indices.sort(key=lambda at: int(numbers[at]))
        for number, (source, target) in enumerate(translator.directions.trained):
            if lines := [sources[at] for at in indices if numbers[at] == number]:
                directed = translator.for_direction(target, source)
                best += [first for first, *_ in directed.translations(lines, scored=True)]
    chrf = metrics["chrf"].for_sentences()
    values = [
        chrf.score([one.text], [references[at]]).value
        for at, one in zip(indices, best, strict=True)
    ]
    features = [features_of(one.token_log_probabilities, one.source, one.text) for one in best]
    return fitted(features, values)


def fitted(features: Sequence[Features], chrf: Sequence[float]) -> Confidence:
    """Fit a logistic regression of whether a line is above the median, by Newton's method.

    Args:
        features: of at least 10 lines.
        chrf: sentence-level chrF of each line.
    """
    x, y = np.array(features), (np.array(chrf) > np.median(chrf)).astype(np.float64)
    fold, held_out = np.arange(len(x)) % FOLDS, np.zeros(len(x))
    for part in range(FOLDS):
        bias, weights = _regression(x[fold != part], y[fold != part])
        held_out[fold == part] = _sigmoid(bias + x[fold == part] @ weights)
    bias, weights = _regression(x, y)
    number = np.minimum(held_out * BINS, BINS - 1).astype(np.int64)
    groups = [number == at for at in np.unique(number)]
    mean, smallest, length, ratio = weights.tolist()
    return Confidence(
        bias=bias,
        weights=(mean, smallest, length, ratio),
        median_chrf=float(np.median(chrf)),
        bins=tuple(
            Bin(
                confidence=float(held_out[group].mean()),
                good=float(y[group].mean()),
                lines=int(group.sum()),
            )
            for group in groups
        ),
    )


def _regression(x: Values, y: Values) -> tuple[float, Values]:
    """Return the bias and the weights [k] for features [n, k] and targets [n]."""
    mean, scale = x.mean(0), x.std(0) + 1e-9
    z = np.column_stack((np.ones(len(x)), (x - mean) / scale))
    w = np.zeros(z.shape[1])
    for _ in range(20):
        p = _sigmoid(z @ w)
        hessian = (z * (p * (1 - p))[:, None]).T @ z + RIDGE * np.eye(len(w))
        w += np.linalg.solve(hessian, z.T @ (y - p) - RIDGE * w)
    weights = w[1:] / scale
    return float(w[0] - mean @ weights), weights


def _sigmoid(logits: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-logits.clip(-50, 50))))

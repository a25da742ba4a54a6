"""Validation of a multilingual model: each direction by itself, and the mean over directions."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from nmt.data.dataset import Split
from nmt.data.directions import Direction
from nmt.data.subset import Subset
from nmt.errors import NmtError
from nmt.evaluation.metrics import Metric
from nmt.inference.translator import Translator
from nmt.runtime.distributed import World
from nmt.runtime.precision import Precision
from nmt.training.report import perplexity
from nmt.training.validation import Validation


class ValidationByDirection:
    """Computes the scores of every direction of the validation set, and their means."""

    def __init__(self, parts: Mapping[Direction, Validation], size: int) -> None:
        """Prepare.

        Args:
            parts: validation of each direction, on a :class:`Subset`.
            size: number of pairs of the validation set.
        """
        self.parts, self.size = parts, size
        self.translator = next(iter(parts.values())).translator
        self.translations: list[str] = []
        """The last translations of all sources, with metrics, in the main process."""

    def __call__(self) -> dict[str, float]:
        """Return the scores by name.

        "loss" and each metric are means over directions, and "perplexity" is that of the mean loss.
        The scores of each direction follow, as "bleu/en-de".
        """
        by_direction = {direction: part() for direction, part in self.parts.items()}
        scores = {
            name: fmean(of_direction[name] for of_direction in by_direction.values())
            for name in next(iter(by_direction.values()))
        }
        scores["perplexity"] = perplexity(scores["loss"])
        for (source, target), of_direction in by_direction.items():
            scores |= {f"{name}/{source}-{target}": one for name, one in of_direction.items()}
        self.translations = []
        if all(part.translations for part in self.parts.values()):
            self.translations = [""] * self.size
            for part in self.parts.values():
                assert isinstance(part.split, Subset)
                for index, text in zip(part.split.indices, part.translations, strict=True):
                    self.translations[index] = text
        return scores

    def try_largest(self) -> None:
        """Score the largest batch and translate the longest sources of each direction."""
        for part in self.parts.values():
            part.try_largest()


Validations = Validation | ValidationByDirection
"""Validation of one direction or of several."""


def validation_of(
    split: Split,
    translator: Translator,
    metrics: tuple[Metric, ...],
    world: World,
    precision: Precision,
) -> Validations:
    """Return the validation of a split, by direction if it has several; see :class:`Validation`.

    Raises:
        NmtError: the split, or all its pairs of a direction, are blank.
    """
    if split.directions is None:
        _refuse_blank(split, "the validation set")
        return Validation(split, translator, metrics, world, precision)
    parts = {}
    for number, direction in enumerate(translator.directions.trained):
        subset = Subset.of_direction(split, number)
        if len(subset):
            _refuse_blank(subset, f"the validation set of {'-'.join(direction)}")
            chosen = tuple(metric.for_language(direction[1]) for metric in metrics)
            directed = translator.into(direction[1], direction[0])
            parts[direction] = Validation(subset, directed, chosen, world, precision)
    return ValidationByDirection(parts, len(split))


def _refuse_blank(split: Split | Subset, name: str) -> None:
    if not ((split.source_lengths > 1) | (split.target_lengths > 1)).any():  # EOS alone
        raise NmtError(
            f"{name} has only blank lines, so there is nothing to score; run `nmt preprocess` "
            "again with other validation text"
        )

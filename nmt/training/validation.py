"""Validation: scores of the model in training on the validation set.

Validation of a multilingual model: each direction by itself, and the mean over directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import make_batch
from nmt.data.dataset import Split, Subset
from nmt.data.directions import Direction
from nmt.data.sampler import Indices, in_length_order
from nmt.errors import NmtError
from nmt.evaluation.metrics import Metric
from nmt.inference.translator import Translator
from nmt.runtime.distributed import World
from nmt.runtime.precision import Precision, autocast
from nmt.training.losses.token import CrossEntropy, TokenCriterion
from nmt.training.reporting.report import perplexity

BATCH_TOKENS = 4096

TRIED_SENTENCES = 64
"""Number of the longest sources that the preflight check translates: about a full batch."""


class Validation:
    """Computes loss, perplexity and translation metrics, spread over all processes."""

    def __init__(
        self,
        split: Split | Subset,
        translator: Translator,
        metrics: tuple[Metric, ...],
        world: World,
        precision: Precision,
    ) -> None:
        """Prepare the validation set.

        Args:
            split: the validation set.
            translator: translates with the model in training, as the command ``translate`` does.
            metrics: compare translations with the raw references; may be empty.
            world: the processes, over which the sentences are distributed.
            precision: precision in which the loss is computed.
        """
        self.split = split
        self.translator = translator
        self.metrics = metrics
        self.world = world
        self.precision = precision
        # Unsmoothed: label smoothing raises perplexity (section 5.4), whose values must be
        # comparable.
        self.criterion = TokenCriterion(translator.model, CrossEntropy())
        self.all_batches = in_length_order(split, BATCH_TOKENS)
        # Every n-th batch in order of length, so that all processes have equal work.
        self.batches = self.all_batches[world.rank :: world.size]
        self.sources = split.source_text() if metrics else []
        self.requests = [*chain.from_iterable(translator.in_documents([self.sources]))]
        self.shard = self.requests[world.rank :: world.size]
        self.references = split.reference_text() if metrics and world.is_main else []
        self.translations: list[str] = []
        """The last translations of all sources, with metrics, in the main process."""

    def __call__(self) -> dict[str, float]:
        """Return the scores by name: "loss" (nats per token), "perplexity", and each metric.

        A model that has diverged, whose loss is NaN, does not translate: each metric is NaN, too.
        """
        loss = self.loss()
        scores = {"loss": loss, "perplexity": perplexity(loss)}
        # A diverged model cannot translate, but its training may still recover.
        if math.isnan(loss):
            self.translations = []
            scores |= {metric.name: math.nan for metric in self.metrics}
        elif self.metrics:
            shards = self.world.gather(list(self.translator.translate(self.shard)))
            hypotheses = [""] * sum(len(shard) for shard in shards)
            for rank, shard in enumerate(shards):
                # The inverse of the slices by rank: the translations return to the order of the
                # sources.
                hypotheses[rank :: self.world.size] = shard
            values: dict[str, float] = {}
            if self.world.is_main:
                self.translations = hypotheses
                values = self._values(hypotheses, self.sources, self.references)
            scores.update(self.world.gather(values)[0])
        return scores

    def _values(
        self, hypotheses: list[str], sources: list[str], references: list[str]
    ) -> dict[str, float]:
        """Return the value of each metric by name."""
        return {
            metric.name: metric.score(hypotheses, references, sources).value
            for metric in self.metrics
        }

    def try_largest(self) -> None:
        """Score the largest batch and translate the longest sources, to test the memory."""
        longer = np.maximum(self.split.source_lengths, self.split.target_lengths)
        largest = max(self.all_batches, key=lambda batch: len(batch) * int(longer[batch].max()))
        # Only the memory matters here, so the result is dropped.
        self._nll(largest)
        if self.metrics:
            longest = np.argsort(self.split.source_lengths)[-TRIED_SENTENCES:]
            requests = [self.requests[index] for index in longest]
            hypotheses = list(self.translator.translate(requests))
            if self.world.is_main:  # a metric may need a package that is not installed
                sources = [self.sources[index] for index in longest]
                self._values(hypotheses, sources, [self.references[index] for index in longest])

    def loss(self) -> float:
        """Return the cross-entropy of the references: nats per target token, no smoothing."""
        total = torch.zeros((), device=self.world.device)
        tokens = 0
        # A process without sentences runs an empty batch: sharding expects the same modules to have
        # run last in every process.
        for indices in self.batches or [np.zeros(0, np.int64)]:
            nll, count = self._nll(indices)
            total += nll
            tokens += count
        # Summed before the division: a mean of means would favour processes with few tokens.
        nll_sum, token_sum = self.world.sum([float(total), float(tokens)])
        return nll_sum / token_sum

    def _nll(self, indices: Indices) -> tuple[Tensor, int]:
        """Return the summed negative log-likelihood of some references, and their token count."""
        batch = make_batch(self.split, indices)
        was_training = self.criterion.training
        self.criterion.eval()
        with torch.no_grad(), autocast(self.precision, self.world.device):
            nll = self.criterion(batch.to(self.world.device))["nll"]
        self.criterion.train(was_training)
        return nll, len(batch.target_output)


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

        "loss" and each metric are means over directions; "perplexity" follows from the mean loss.
        The scores of each direction follow, as "bleu/en-de".
        """
        by_direction = {direction: part() for direction, part in self.parts.items()}
        scores = {
            name: fmean(of_direction[name] for of_direction in by_direction.values())
            for name in next(iter(by_direction.values()))
        }
        # Of the mean loss: a mean of perplexities would follow the worst direction.
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
            directed = translator.for_direction(direction[1], direction[0])
            parts[direction] = Validation(subset, directed, chosen, world, precision)
    return ValidationByDirection(parts, len(split))


def _refuse_blank(split: Split | Subset, name: str) -> None:
    if not ((split.source_lengths > 1) | (split.target_lengths > 1)).any():  # EOS alone
        raise NmtError(
            f"{name} has only blank lines, so there is nothing to score; run `nmt preprocess` "
            "again with other validation text"
        )

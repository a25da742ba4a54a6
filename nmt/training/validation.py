"""Validation: scores of the model in training on the validation set."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import make_batch
from nmt.data.dataset import Split
from nmt.data.sampler import Indices, in_length_order
from nmt.data.subset import Subset
from nmt.evaluation.metrics import Metric
from nmt.inference.translator import Translator
from nmt.runtime.distributed import World
from nmt.runtime.precision import Precision, autocast
from nmt.training.criterion import TokenCriterion
from nmt.training.losses import CrossEntropy
from nmt.training.report import perplexity

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
        self.criterion = TokenCriterion(translator.model, CrossEntropy())
        self.all_batches = in_length_order(split, BATCH_TOKENS)
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
        if math.isnan(loss):
            self.translations = []
            scores |= {metric.name: math.nan for metric in self.metrics}
        elif self.metrics:
            shards = self.world.gather(list(self.translator.translate(self.shard)))
            hypotheses = [""] * sum(len(shard) for shard in shards)
            for rank, shard in enumerate(shards):
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
        # Sharding expects the same modules to have run last in every process.
        for indices in self.batches or [np.zeros(0, np.int64)]:
            nll, count = self._nll(indices)
            total += nll
            tokens += count
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

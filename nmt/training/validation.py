"""What a model in training is worth on the held-out pairs of its dataset."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import make_batch
from nmt.data.dataset import Split
from nmt.data.sampler import Indices, in_length_order
from nmt.evaluation.metrics import Metric
from nmt.inference.translator import Translator
from nmt.runtime.distributed import World
from nmt.runtime.precision import Precision, autocast
from nmt.training.criterion import TokenCriterion
from nmt.training.losses import CrossEntropy
from nmt.training.report import perplexity

BATCH_TOKENS = 4096

TRIED_SENTENCES = 64
"""Translated before training; of the longest, so about a full batch of a search."""


class Validation:
    """Measures loss, perplexity and the metrics of translations, with all processes at work."""

    def __init__(
        self,
        split: Split,
        translator: Translator,
        metrics: tuple[Metric, ...],
        world: World,
        precision: Precision,
    ) -> None:
        """Prepares the held-out pairs.

        Args:
            split: the held-out pairs.
            translator: of the model in training: the same road as the command ``translate``.
            metrics: of translations against the raw references; may be empty.
            world: among whose processes the sentences are shared out.
            precision: of the loss.
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
        self.shard = self.sources[world.rank :: world.size]
        self.references = split.reference_text() if metrics and world.is_main else []

    def __call__(self) -> dict[str, float]:
        """The scores by name: "loss" (nats per token), "perplexity", and each metric's value."""
        loss = self.loss()
        scores = {"loss": loss, "perplexity": perplexity(loss)}
        if self.metrics:
            own = list(self.translator.translate(self.shard))
            shares = self.world.gather(own)
            hypotheses = [""] * sum(len(shard) for shard in shares)
            for rank, shard in enumerate(shares):
                hypotheses[rank :: self.world.size] = shard
            values: dict[str, float] = {}
            if self.world.is_main:
                values = self._values(hypotheses, self.sources, self.references)
            scores.update(self.world.gather(values)[0])
        return scores

    def _values(
        self, hypotheses: list[str], sources: list[str], references: list[str]
    ) -> dict[str, float]:
        """Each metric's value, by its name."""
        return {it.name: it.score(hypotheses, references, sources).value for it in self.metrics}

    def try_largest(self) -> None:
        """Scores the largest batch, translates the longest sources, and keeps nothing of it."""
        longer = np.maximum(self.split.source_lengths, self.split.target_lengths)
        largest = max(self.all_batches, key=lambda batch: len(batch) * int(longer[batch].max()))
        self._nll(largest)
        if self.metrics:
            longest = np.argsort(self.split.source_lengths)[-TRIED_SENTENCES:]
            sources = [self.sources[index] for index in longest]
            found = list(self.translator.translate(sources))
            if self.world.is_main:  # a metric may lack a package of its own
                self._values(found, sources, [self.references[index] for index in longest])

    def loss(self) -> float:
        """Cross-entropy of the references, in nats per target token, without smoothing."""
        total = torch.zeros((), device=self.world.device)
        tokens = 0
        for indices in self.batches:
            nll, count = self._nll(indices)
            total += nll
            tokens += count
        nll_sum, token_sum = self.world.sum([float(total), float(tokens)])
        return nll_sum / token_sum

    def _nll(self, indices: Indices) -> tuple[Tensor, int]:
        """The negative log-likelihood of some references, summed, and their tokens."""
        batch = make_batch(self.split, indices)
        was_training = self.criterion.training
        self.criterion.eval()
        with torch.no_grad(), autocast(self.precision, self.world.device):
            nll = self.criterion(batch.to(self.world.device))["nll"]
        self.criterion.train(was_training)
        return nll, len(batch.target_positions)

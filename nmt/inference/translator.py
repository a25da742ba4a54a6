"""Lines in, lines out: the one road from text to translation.

Validation during training and the command ``translate`` both take it. The contract: as many lines
come out as went in, in the same order; a blank line gives an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nmt.data.batches import as_groups, as_rows
from nmt.inference.forced import attention_weights, token_log_probabilities
from nmt.inference.shortlister import Shortlister
from nmt.inference.translation import Sentence
from nmt.inference.workers import Workers
from nmt.models.base import Model
from nmt.runtime.precision import InferencePrecision, autocast
from nmt.search import Constraint, Hypothesis, Prefixes
from nmt.search.coverage import with_coverage

if TYPE_CHECKING:
    from nmt.preprocess.subwords import Subwords
from nmt.inference.config import SearchConfig
from nmt.inference.line_translator import LineTranslator, T

SHORT = 16
"""Tokens that a shorter sentence counts for in a batch, whose rows hold vocabularies of scores."""

BATCHES_A_WORKER = 4
"""Long sentences take more steps: of one batch each, one worker would wait for the other."""


class Translator(LineTranslator):
    """Translates lines with a model of this package."""

    def __init__(
        self,
        model: Model,
        subwords: Subwords,
        config: SearchConfig,
        device: torch.device = torch.device("cpu"),  # noqa: B008 -- an immutable value
        precision: InferencePrecision = "fp32",
        workers: int = 1,
        shortlister: Shortlister | None = None,
        languages: tuple[str, str] = ("", ""),
    ) -> None:
        """A translator that holds the model, not a copy.

        Args:
            model: on `device`; in any mode, which is restored after each use.
            subwords: the model's own.
            config: how to search.
            device: where sources are put.
            precision: what the model computes in; scores are summed in float32 all the same. For
                "int8" the model must have been through :func:`nmt.runtime.precision.convert`.
            workers: processes of one thread each among which batches are shared out (CPU).
            shortlister: of the model, made before it was converted; None to search the whole
                vocabulary.
            languages: source and target; empty where they are not known.
        """
        super().__init__(subwords, config, languages)
        self.model = model
        self.shortlister = shortlister
        self.device = device
        self.precision = precision
        self._workers = Workers(self._search_batch, workers)
        # On a CPU `inference_mode` takes a tenth off the time of one sentence; but what a module
        # keeps from it could not be trained with afterwards, as one that was converted is not.
        can_be_trained = any(parameter.requires_grad for parameter in model.parameters())
        self._without_gradients = torch.no_grad if can_be_trained else torch.inference_mode

    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Sentences of like length share a batch, and workers the batches."""
        longest_first = sorted(sentences, key=lambda at: -len(sentences[at].source))
        batches = list(self._batches(longest_first, sentences))
        results = self._workers.map([([sentences[at] for at in it], count) for it in batches])
        for batch, result in zip(batches, results, strict=True):
            yield from zip(batch, result, strict=True)

    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """By a pass of the model over whole targets."""
        return self._force(token_log_probabilities, sources, targets)

    def attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Tensor]:
        """By a pass of the model over whole targets."""
        return self._force(attention_weights, sources, targets)

    def _force(
        self,
        given: Callable[..., list[T]],
        sources: Sequence[list[int]],
        targets: Sequence[list[int]],
    ) -> list[T]:
        with self._inference(), autocast(self.precision, self.device):
            return given(self.model, sources, targets, self.device)

    def _batches(
        self, longest_first: Sequence[int], sentences: dict[int, Sentence]
    ) -> Iterator[Sequence[int]]:
        """Runs of `longest_first` with at most `batch_tokens`, or a single sentence.

        Several workers have at least `BATCHES_A_WORKER` each, where there are as many sentences.
        """
        rows, start = self.config.strategy.rows, 0
        lengths = {at: max(SHORT, len(it.source)) for at, it in sentences.items()}
        shares = 1 if self._workers.count == 1 else BATCHES_A_WORKER * self._workers.count
        share = -(-rows * sum(lengths.values()) // shares)
        limit = min(self.config.batch_tokens, share)
        while start < len(longest_first):
            size = max(1, limit // (rows * lengths[longest_first[start]]))
            yield longest_first[start : start + size]
            start += size

    def _search_batch(self, wanted: tuple[list[Sentence], int]) -> list[list[Hypothesis]]:
        sentences, count = wanted
        source = as_rows([it.source for it in sentences]).to(self.device)
        max_lengths = torch.tensor(
            [max(self.config.max_length(len(it.source)), it.least_length) for it in sentences],
            device=self.device,
        )
        constraints: Sequence[Constraint] = self.config.constraints
        if any(it.prefix for it in sentences):
            prefixes = as_rows([it.prefix for it in sentences]).to(self.device)
            constraints = [Prefixes(tokens=prefixes, others=constraints)]
        phrases = None
        if any(it.phrases for it in sentences):
            phrases = as_groups([it.phrases for it in sentences]).to(self.device)
        search = partial(self.config.strategy.search, self.model)
        with self._inference(), autocast(self.precision, self.device):
            if self.shortlister is not None:
                forced = as_rows([it.forced for it in sentences]).to(self.device)
                few = self.shortlister.choose(source, forced)
                search = partial(few.search, self.config.strategy)
            found = search(source, max_lengths, constraints, phrases, count)
            if self.config.coverage_penalty:
                found = with_coverage(found, self.model, source, self.config.coverage_penalty)
        return found

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """No dropout and no gradients."""
        was_training = self.model.training
        self.model.eval()
        try:
            with self._without_gradients():
                yield
        finally:
            self.model.train(was_training)

"""Translate lines with a model of this package.

Validation during training and the command ``translate`` both use this translator. It returns one
line per input line, in the same order; a blank line has an empty translation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.directions import Direction
from nmt.data.padding import as_groups, as_rows
from nmt.errors import NmtError
from nmt.inference.alignment import (
    attention_weights,
    next_log_probabilities,
    token_log_probabilities,
)
from nmt.inference.execution import ON_CPU, Execution
from nmt.inference.fast.recorded_search import RecordedSearch
from nmt.inference.fast.shortlister import Shortlister
from nmt.inference.fast.workers import Workers
from nmt.inference.lines import LineTranslator
from nmt.inference.request import Sentence, naming_line
from nmt.models.base import Model
from nmt.runtime.precision import LOW, autocast, pick_precision
from nmt.search import Avoided, Constraint, Hypothesis, Prefixes, Strategy
from nmt.search.base import NoOutputError
from nmt.search.config import SearchConfig
from nmt.search.ranking import with_coverage
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import without_tags

MIN_TOKENS = 16
"""Minimum number of tokens that a sentence counts as: each row holds scores of the vocabulary."""

BATCHES_A_WORKER = 4
"""Minimum number of batches per worker. Long sentences take more steps: with one batch each, one
worker would wait for another."""

SHORTLIST_TOKENS = 4096
"""Source tokens of a batch with a shortlist, on a CPU. A step computes logits of the tokens that
any sentence of the batch may need, so more sentences mean more logits for each of them."""


class Translator(LineTranslator):
    """Translates lines with a model of this package."""

    def __init__(
        self,
        model: Model,
        subwords: Subwords,
        config: SearchConfig,
        execution: Execution = ON_CPU,
        shortlister: Shortlister | None = None,
        languages: Direction = ("", ""),
    ) -> None:
        """Hold the model, not a copy.

        Args:
            model: on the device of `execution`; its training mode is restored after each use.
            subwords: subwords of the model.
            config: settings of the search.
            execution: settings of how the model is run; it is compiled already if it should be.
            shortlister: shortlister of the model, made before the conversion; None to search the
                whole vocabulary.
            languages: source and target language; empty if unknown.

        Raises:
            NmtError: `execution.cuda_graphs` for a model whose steps have no fixed size.
        """
        super().__init__(subwords, config, languages)
        self.model = model
        self.reads_source = model.reads_source
        self.execution = execution
        self.device = torch.device(execution.device)
        self.shortlister = shortlister
        self._recorded = RecordedSearch(model) if execution.cuda_graphs else None
        self._workers = Workers(self._search_batch, execution.workers)
        if execution.threads:
            torch.set_num_threads(execution.threads)
        # On a CPU `inference_mode` takes a tenth off the time of one sentence. But a model that
        # keeps inference tensors cannot be trained afterwards; a converted model never is.
        can_be_trained = any(parameter.requires_grad for parameter in model.parameters())
        self._without_gradients = torch.no_grad if can_be_trained else torch.inference_mode
        self._is_low = pick_precision(execution.precision, self.device) in LOW

    @property
    def survives_fork(self) -> bool:
        """Whether processes that are forked can translate: they share the weights on a CPU."""
        return self.device.type == "cpu"

    def search_alone(self) -> None:
        """Search all batches in this process, which may be a worker itself."""
        self._workers.count = 1

    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search in batches of sentences of similar length, which the workers share."""
        alike: dict[Strategy, dict[int, Sentence]] = {}
        for at, sentence in sentences.items():
            alike.setdefault(sentence.strategy or self.config.strategy, {})[at] = sentence
        batches = [
            (strategy, batch)
            for strategy, group in alike.items()
            for batch in self._batches(max(strategy.rows_per_sentence, count), group)
        ]
        results = self._workers.map(
            [(strategy, [sentences[at] for at in batch], count) for strategy, batch in batches]
        )
        for (_, batch), result in zip(batches, results, strict=True):
            yield from zip(batch, result, strict=True)

    def _batches(self, rows: int, sentences: dict[int, Sentence]) -> Iterator[Sequence[int]]:
        """Yield sentences of similar length with at most `batch_tokens`, or a single sentence.

        Each of several workers gets at least `BATCHES_A_WORKER` batches if there are enough
        sentences.

        Args:
            rows: number of hypotheses of each sentence.
            sentences: sentences by line number.
        """
        # The longest first: a batch that does not fit fails at once, and short ones fill the end.
        longest_first, start = sorted(sentences, key=lambda at: -len(sentences[at].source)), 0
        lengths = {at: max(MIN_TOKENS, len(sentence.source)) for at, sentence in sentences.items()}
        shares = 1 if self._workers.count == 1 else BATCHES_A_WORKER * self._workers.count
        # Smaller batches for several workers: all workers would wait for one long batch.
        share = -(-rows * sum(lengths.values()) // shares)
        limit = min(self.config.batch_limit(self.device.type), share)
        if self.shortlister is not None and self.device.type == "cpu":
            limit = min(limit, rows * SHORTLIST_TOKENS)
        while start < len(longest_first):
            size = max(1, limit // (rows * lengths[longest_first[start]]))
            yield longest_first[start : start + size]
            start += size

    def _search_batch(self, batch: tuple[Strategy, list[Sentence], int]) -> list[list[Hypothesis]]:
        """Search a batch; one that does not fit the memory of a GPU is searched in halves."""
        strategy, sentences, count = batch
        try:
            with self._inference():
                return self._search_at_once(strategy, sentences, count)
        except NoOutputError as error:
            # A search only knows the position in the batch, which says nothing to a user.
            [line] = self.subwords.decode_source([sentences[error.sentence].source[:-1]])
            with naming_line(line):
                raise
        except torch.cuda.OutOfMemoryError:
            if len(sentences) == 1:
                raise
        torch.cuda.empty_cache()  # after the error, which keeps tensors
        middle = len(sentences) // 2
        halves = sentences[:middle], sentences[middle:]
        results = [self._search_batch((strategy, half, count)) for half in halves]
        return [*results[0], *results[1]]

    def _search_at_once(
        self, strategy: Strategy, sentences: list[Sentence], count: int
    ) -> list[list[Hypothesis]]:
        device = self.device
        source = as_rows([sentence.source for sentence in sentences]).to(device)  # [B, S]
        lengths = [self.config.max_length(len(sentence.source)) for sentence in sentences]
        constraints: Sequence[Constraint] = [*self.config.constraints, *strategy.constraints]
        phrases = None
        if any(sentence.avoided for sentence in sentences):
            avoided = as_groups([sentence.avoided for sentence in sentences]).to(device)
            constraints = [*constraints, Avoided(phrases=avoided)]
        if any(sentence.prefix for sentence in sentences):
            prefixes = as_rows([sentence.prefix for sentence in sentences]).to(device)
            # Around all other constraints, none of which may forbid a forced token.
            # All sentences of a batch have one direction.
            tags, _ = without_tags(self.subwords.target, [*sentences[0].prefix])
            constraints = [Prefixes(tokens=prefixes, others=constraints, num_given=len(tags))]
        if any(sentence.phrases for sentence in sentences):
            phrases = as_groups([sentence.phrases for sentence in sentences]).to(device)
        forced = [
            [*sentence.prefix, *chain.from_iterable(sentence.phrases)] for sentence in sentences
        ]
        # No maximum length may cut what the request demands.
        least = [len(tokens) + 1 for tokens in forced]  # and EOS
        max_lengths = torch.tensor([*map(max, lengths, least)], device=device)
        asked = source, max_lengths, constraints, phrases, count
        if self.shortlister is not None:
            vocabulary = self.shortlister.choose(source, as_rows(forced).to(device))
            results = vocabulary.search(strategy, *asked)
        elif self._recorded is not None:
            results = self._recorded.search(strategy, *asked)
        else:
            results = strategy.search(self.model, *asked)
        if self.config.coverage_penalty:
            results = with_coverage(results, self.model, source, self.config.coverage_penalty)
        elif strategy.coverage_penalty:
            with suppress(NmtError):  # the model has no attention
                results = with_coverage(results, self.model, source, strategy.coverage_penalty)
        return results

    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Compute log-probabilities in one pass of the model over whole targets; 0 for tags."""
        with self._inference():
            scores = token_log_probabilities(self.model, sources, targets, self.device)
        if tags := self.subwords.tags[1]:
            for row, ids in zip(scores, targets, strict=True):
                if ids[: len(tags)] == tags:
                    row[: len(tags)] = [0.0] * len(tags)
        return scores

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """Compute the attention in one pass of the model over whole targets."""
        with self._inference():
            return attention_weights(self.model, sources, targets, self.device)

    def next_log_probabilities(self, source: list[int], prefix: list[int]) -> Tensor:
        """Return the log-probability [V] of each token after a prefix; the source ends with EOS."""
        with self._inference():
            return next_log_probabilities(self.model, source, prefix, self.device)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Disable dropout and gradients, and compute in the precision."""
        was_training = self.model.training
        if was_training:  # a walk through all modules takes long, compared with one sentence
            self.model.eval()
        precision = (
            autocast(self.execution.precision, self.device) if self._is_low else nullcontext()
        )
        try:
            with self._without_gradients(), precision:
                yield
        finally:
            if was_training:
                self.model.train()

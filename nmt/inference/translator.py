"""Lines in, lines out: the one road from text to translation.

Validation during training and the command ``translate`` both take it. The contract: as many lines
come out as went in, in the same order; a blank line gives an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from nmt.data.format import EOS, PAD
from nmt.errors import NmtError
from nmt.evaluation.consensus import Utility, expected_utilities
from nmt.inference.forced import token_log_probabilities
from nmt.inference.long_lines import parts
from nmt.inference.workers import Workers
from nmt.lines import OnInvalidUtf8
from nmt.models.base import Model
from nmt.models.ensemble import Average, Ensemble
from nmt.precision import InferencePrecision, autocast
from nmt.search import Constraint, Hypothesis, Strategy, strategies

if TYPE_CHECKING:
    from nmt.preprocess.subwords import Subwords


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The recipe's section ``search``. Lengths are in pieces and include EOS."""

    strategy: Strategy = strategies["beam"]
    """How to search; the default is the paper's beam of 4 with the length penalty of GNMT."""

    constraints: tuple[Constraint, ...] = ()
    """What may not appear in a translation, or not yet; a list of names, or of mappings with a name
    and its settings."""

    mbr: Utility | None = None
    """Minimum Bayes risk: of all that the strategy finds, such as samples, the best is what agrees
    most with the others by sentence-level chrF or BLEU; that mean, in per cent, is the score."""

    ensemble: Average = "probability"
    """What is averaged where several models vote: their probabilities, or their logarithms."""

    weights: tuple[float, ...] = ()
    """Of the models of an ensemble; only their proportions matter. Equal by default."""

    max_length_ratio: float = 1.0
    """A translation has at most this times its source's length, plus the offset."""

    max_length_offset: int = 50
    """Pieces that a translation may be longer than the ratio allows; 50 is the paper's."""

    max_source_length: int = 1024
    """Longer sources are cut to this length or split, and counted."""

    on_long_line: Literal["cut", "split"] = "cut"
    """What becomes of a longer source: it is cut, or split at the ends of sentences, else of
    clauses, else of words, and the translations of the parts are put together."""

    on_invalid_utf8: OnInvalidUtf8 = "error"
    """What to do with bytes that are not UTF-8; "replace" puts U+FFFD in their place."""

    batch_tokens: int = 16384
    """The most source tokens in a batch, padding included, times the rows of the search. More is
    faster on a GPU until its memory is full."""

    window: int = 4096
    """Lines that are read ahead to be sorted by length, so that batches hold little padding."""

    def __post_init__(self) -> None:
        if not self.max_length_ratio >= 0:
            raise ValueError(f"max_length_ratio must be at least 0, not {self.max_length_ratio:g}")
        if self.max_source_length < 2:
            raise ValueError(f"max_source_length must be at least 2, not {self.max_source_length}")
        for key in ("max_length_offset", "batch_tokens", "window"):
            if (value := getattr(self, key)) < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")

    def one_of(self, models: Sequence[Model]) -> Model:
        """The one model, or the ensemble that several are."""
        if len(models) == 1:
            return models[0]
        try:
            return Ensemble(models, self.weights or [1.0] * len(models), self.ensemble)
        except ValueError as error:
            raise NmtError(f"search.weights: {error}") from None

    def max_length(self, source_length: int) -> int:
        """The greatest length of the translation of a source of that length, both with EOS."""
        return int(self.max_length_ratio * source_length) + self.max_length_offset


@dataclass(frozen=True)
class Translation:
    """One translation of a line."""

    text: str
    """Detokenised, without a line feed."""

    hypothesis: Hypothesis
    """What the search found."""

    token_log_probabilities: list[float]
    """Of each token and, where it was finished, the EOS; empty where they were not asked for."""

    def followed_by(self, other: Translation, space: str) -> Translation:
        """The translation of two parts of a line."""
        one, two = self.hypothesis, other.hypothesis
        return Translation(
            self.text + space + other.text,
            Hypothesis(
                one.tokens + two.tokens,
                one.log_probability + two.log_probability,
                one.score + two.score,
                one.finished and two.finished,
            ),
            self.token_log_probabilities + other.token_log_probabilities,
        )


class Translator:
    """Translates lines with a model.

    Attributes:
        truncated: how many sources were cut so far.
        split: how many lines were split so far.
        target_tokens: how many tokens the translations so far have, each with its EOS.
    """

    def __init__(
        self,
        model: Model,
        subwords: Subwords,
        config: SearchConfig,
        device: torch.device = torch.device("cpu"),  # noqa: B008 -- an immutable value
        precision: InferencePrecision = "fp32",
        workers: int = 1,
    ) -> None:
        """A translator that holds the model, not a copy.

        Args:
            model: on `device`; in any mode, which is restored after each use.
            subwords: the model's own.
            config: how to search.
            device: where sources are put.
            precision: what the model computes in; scores are summed in float32 all the same. For
                "int8" the model must have been through :func:`nmt.precision.convert`.
            workers: processes of one thread each among which batches are shared out (CPU).
        """
        self.model = model
        self.subwords = subwords
        self.config = config
        self.device = device
        self.precision = precision
        self.truncated = 0
        self.split = 0
        self.target_tokens = 0
        self._workers = Workers(self._search_batch, workers)

    def translate(self, lines: Iterable[str]) -> Iterator[str]:
        """One translation per line, in order, lazily; reads at most a window of lines ahead."""
        for best, *_ in self.translations(lines):
            yield best.text

    def translations(
        self, lines: Iterable[str], count: int = 1, scored: bool = False
    ) -> Iterator[list[Translation]]:
        """At least one and at most `count` translations per line, best first, in order, lazily.

        Args:
            lines: of any kind; a blank one has one empty translation.
            count: no more than the strategy finds are given. Of a line that was split, the n-th
                is made of the n-th of each part.
            scored: whether each token's log-probability is wanted, for which the model runs over
                the translations once more.
        """
        waiting = iter(lines)
        while window := list(islice(waiting, self.config.window)):
            divided = [self._parts(line) for line in window]
            self.split += sum(len(line) > 1 for line in divided)
            found = iter(self._found([part for line in divided for part in line], count, scored))
            for _, *others in divided:
                whole = next(found)
                for part in others:  # what stood between two parts stands before the second
                    space = part[: len(part) - len(part.lstrip())]
                    pairs = zip(whole, next(found), strict=False)
                    whole = [first.followed_by(second, space) for first, second in pairs]
                yield whole

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of given translations, the EOS last."""
        encoded = [
            [[*tokens, EOS] for tokens in encode(list(lines))]
            for encode, lines in (
                (self.subwords.encode_source, sources),
                (self.subwords.encode_target, targets),
            )
        ]
        return self._force(*encoded)

    def _found(self, lines: list[str], count: int, scored: bool) -> list[list[Translation]]:
        nothing = Hypothesis([], 0.0, 0.0, finished=True)
        sources = self._encode(lines)
        found = [it[:count] or [nothing] for it in self._ranked(self._search(sources, len(lines)))]
        flat = [(at, it) for at, hypotheses in enumerate(found) for it in hypotheses]
        texts = iter(self.subwords.decode_target([it.tokens for _, it in flat]))
        values: list[list[float]] = [[]] * len(flat)
        if scored:
            kept = [row for row, (at, _) in enumerate(flat) if at in sources]
            forced = self._force(
                [sources[flat[row][0]] for row in kept], [flat[row][1].output for row in kept]
            )
            for row, gains in zip(kept, forced, strict=True):
                values[row] = gains
        gains_of = iter(values)
        return [[Translation(next(texts), it, next(gains_of)) for it in each] for each in found]

    def _ranked(self, found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """The same hypotheses, in the order of the consensus where that is asked for."""
        if self.config.mbr is None:
            return found
        flat = [hypothesis.tokens for hypotheses in found for hypothesis in hypotheses]
        texts = iter(self.subwords.decode_target(flat))
        ranked = []
        for hypotheses in found:
            candidates = list(islice(texts, len(hypotheses)))
            values = expected_utilities(candidates, self.config.mbr) if candidates else []
            scored = [
                replace(it, score=value) for it, value in zip(hypotheses, values, strict=True)
            ]
            ranked.append(sorted(scored, key=lambda it: -it.score))
        return ranked

    def _force(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        with self._inference(), autocast(self.precision, self.device):
            return token_log_probabilities(self.model, sources, targets, self.device)

    def _parts(self, line: str) -> list[str]:
        return [line] if self.config.on_long_line == "cut" else parts(line, self._fits)

    def _fits(self, text: str) -> bool:
        (tokens,) = self.subwords.encode_source([text])
        return len(tokens) < self.config.max_source_length  # and EOS

    def search(self, lines: Sequence[str]) -> list[list[Hypothesis]]:
        """The hypotheses of each line, best first; none for a blank one.

        Sentences of like length share a batch. A line is blank where it is white space, or holds
        nothing that the subwords know.
        """
        return self._search(self._encode(lines), len(lines))

    def _search(self, sources: dict[int, list[int]], count: int) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in range(count)]
        longest_first = sorted(sources, key=lambda at: -len(sources[at]))
        batches = list(self._batches(longest_first, sources))
        results = self._workers.map([[sources[at] for at in batch] for batch in batches])
        for batch, result in zip(batches, results, strict=True):
            for at, hypotheses in zip(batch, result, strict=True):
                found[at] = hypotheses
                best = hypotheses[0]
                self.target_tokens += len(best.tokens) + best.finished
        return found

    def _encode(self, lines: Sequence[str]) -> dict[int, list[int]]:
        """The source tokens, with EOS, of every line that is not blank."""
        most = self.config.max_source_length - 1  # and EOS
        sources = {}
        encoded = self.subwords.encode_source(list(lines))
        for at, (line, tokens) in enumerate(zip(lines, encoded, strict=True)):
            if tokens and not line.isspace():
                sources[at] = [*tokens[:most], EOS]
                self.truncated += len(tokens) > most
        return sources

    def _batches(
        self, longest_first: Sequence[int], sources: dict[int, list[int]]
    ) -> Iterator[Sequence[int]]:
        """Runs of `longest_first` with at most `batch_tokens`, or a single sentence.

        There are at least as many as workers, where there are as many sentences.
        """
        rows, start = self.config.strategy.rows, 0
        share = -(-rows * sum(map(len, sources.values())) // self._workers.count)
        limit = min(self.config.batch_tokens, share)
        while start < len(longest_first):
            size = max(1, limit // (rows * len(sources[longest_first[start]])))
            yield longest_first[start : start + size]
            start += size

    def _search_batch(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        width = max(map(len, sources))
        padded = [tokens + [PAD] * (width - len(tokens)) for tokens in sources]
        max_lengths = [self.config.max_length(len(tokens)) for tokens in sources]
        with self._inference(), autocast(self.precision, self.device):
            return self.config.strategy.search(
                self.model,
                self._tensor(padded),
                self._tensor(max_lengths),
                self.config.constraints,
            )

    def _tensor(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """No dropout and no gradients.

        Not ``inference_mode``: what a module keeps from it could not be trained with afterwards.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)

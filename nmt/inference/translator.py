"""Lines in, lines out: the one road from text to translation.

Validation during training and the command ``translate`` both take it. The contract: as many lines
come out as went in, in the same order; a blank line gives an empty one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from nmt.data.batching import as_groups, as_rows
from nmt.data.format import EOS
from nmt.errors import NmtError
from nmt.evaluation.consensus import expected_utilities
from nmt.evaluation.metrics import Metric
from nmt.inference.alignment import Unit, linked, numbered, piece_starts, word_starts
from nmt.inference.distinct import distinct_lists
from nmt.inference.forced import attention_weights, token_log_probabilities
from nmt.inference.long_lines import parts
from nmt.inference.shortlister import Shortlister
from nmt.inference.translation import Request, Sentence, Translation
from nmt.inference.workers import Workers
from nmt.languages import has_spaces
from nmt.lines import OnInvalidUtf8, refuse_one_string
from nmt.models.base import Model
from nmt.models.ensemble import Average, Ensemble
from nmt.precision import InferencePrecision, autocast
from nmt.search import Constraint, Hypothesis, Prefixes, Strategy, strategies
from nmt.search.coverage import with_coverage

if TYPE_CHECKING:
    from nmt.preprocess.subwords import Subwords

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The recipe's section ``search``. Lengths are in pieces and include EOS."""

    strategy: Strategy = strategies["beam"]
    """How to search; the default is the paper's beam of 4 with the length penalty of GNMT."""

    constraints: tuple[Constraint, ...] = ()
    """What may not appear in a translation, or not yet; a list of names, or of mappings with a name
    and its settings."""

    mbr: Metric | None = None
    """Minimum Bayes risk: of all that the strategy finds, such as samples, the best is the one that
    agrees most with the others by a sentence-level metric, such as chrf or bleu; that mean, in per
    cent and negative for an error rate, is the score."""

    coverage_penalty: float = 0.0
    """beta of GNMT's coverage penalty (Wu et al. 2016; they have 0.2): of all that the strategy
    finds, outputs that leave parts of the source unattended rank lower. A beam that is to find
    more to choose from stops at `all_finished`."""

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
    """The most source tokens in a batch, padding included, times the rows of the search; a sentence
    of fewer than 16 counts as 16. More is faster on a GPU until its memory is full."""

    window: int = 4096
    """Lines that are read ahead to be sorted by length, so that batches hold little padding."""

    def __post_init__(self) -> None:
        if not self.max_length_ratio >= 0:
            raise ValueError(f"max_length_ratio must be at least 0, not {self.max_length_ratio:g}")
        if self.max_source_length < 2:
            raise ValueError(f"max_source_length must be at least 2, not {self.max_source_length}")
        if not self.coverage_penalty >= 0:
            raise ValueError(f"coverage_penalty must be at least 0, not {self.coverage_penalty:g}")
        for key in ("max_length_offset", "batch_tokens", "window"):
            if (value := getattr(self, key)) < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")
        if self.mbr is not None and self.mbr.needs_source:
            raise ValueError(f"mbr: {self.mbr.name} needs the source; choose chrf or bleu")

    def for_language(self, target_lang: str) -> SearchConfig:
        """Return the settings for a target language wherever they are "auto"."""
        if self.mbr is None:
            return self
        return replace(self, mbr=self.mbr.for_language(target_lang).for_sentences())

    def check_count(self, count: int) -> None:
        """Raises an NmtError where the strategy never finds so many translations of a line."""
        if count > (most := self.strategy.max_hypotheses):
            key = self.strategy.count_key
            way = (
                f"raise search.strategy.{key} to at least" if key else "use --strategy beam --beam"
            )
            raise NmtError(
                f"{count} translations of a line: {self.strategy.name} finds at most {most}; "
                f"ask for fewer, or {way} {count}"
            )

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


class LineTranslator(ABC):
    """Translates lines with whatever engine searches.

    Attributes:
        languages: source and target.
        truncated: how many sources were cut so far.
        split: how many lines were split so far.
        empty: how many lines that are not blank have translations that are.
        target_tokens: how many tokens the translations so far have, each with its EOS.
    """

    def __init__(
        self, subwords: Subwords, config: SearchConfig, languages: tuple[str, str] = ("", "")
    ) -> None:
        self.subwords = subwords
        self.config = config.for_language(languages[1])
        self.languages = languages
        self.truncated = 0
        self.split = 0
        self.empty = 0
        self.target_tokens = 0

    @property
    def usual_unit(self) -> Unit:
        """What to align: words, or pieces where a language puts no spaces between words."""
        return "words" if all(map(has_spaces, self.languages)) else "pieces"

    def translate(self, lines: Iterable[str | Request]) -> Iterator[str]:
        """One translation per line, in order, lazily; reads at most a window of lines ahead.

        Raises:
            TypeError: one string was given.
        """
        return (best.text for best, *_ in self.translations(lines))

    def translations(
        self,
        lines: Iterable[str | Request],
        count: int = 1,
        scored: bool = False,
        aligned: Unit | None = None,
    ) -> Iterator[list[Translation]]:
        """At least one and at most `count` translations per line, best first, in order, lazily.

        Args:
            lines: of any kind; a blank one has one empty translation. A :class:`Request` that asks
                for more than a translation is never split, but cut.
            count: how many are wanted; they differ, and are fewer only where the model has no more.
                Of a line that was split, the n-th is made of the n-th of each part.
            scored: whether each token's log-probability is wanted, for which the model runs over
                the translations once more.
            aligned: what is to be aligned with the source, if anything, for which it does so, too;
                see :attr:`usual_unit`.

        Raises:
            NmtError: the strategy never finds so many; nothing has been read then.
            TypeError: one string was given.
        """
        refuse_one_string(lines, "lines")
        self.config.check_count(count)
        return self._translations(lines, count, scored, aligned)

    def _translations(
        self, lines: Iterable[str | Request], count: int, scored: bool, aligned: Unit | None
    ) -> Iterator[list[Translation]]:
        waiting = iter(lines)
        while window := list(islice(waiting, self.config.window)):
            requests = [it if isinstance(it, Request) else Request(it) for it in window]
            divided = [self._parts(request) for request in requests]
            self.split += sum(len(line) > 1 for line in divided)
            parts_of_all = [part for line in divided for part in line]
            found = iter(self._found(parts_of_all, count, scored, aligned))
            for _, *others in divided:
                whole = next(found)
                for part in others:  # what stood between two parts stands before the second
                    space = part.text[: len(part.text) - len(part.text.lstrip())]
                    pairs = zip(whole, next(found), strict=False)
                    whole = [first.followed_by(second, space) for first, second in pairs]
                self.empty += bool(whole[0].source.strip()) and not whole[0].text.strip()
                yield whole

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of given translations, the EOS last.

        Raises:
            TypeError: one string was given.
        """
        refuse_one_string(sources, "sources")
        refuse_one_string(targets, "targets")
        return self.log_probabilities(*self._encode_pairs(sources, targets))

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the source word of each word of given translations: pairs of both, from 0.

        Raises:
            TypeError: one string was given.
            NmtError: the model has no attention.
        """
        refuse_one_string(sources, "sources")
        refuse_one_string(targets, "targets")
        weights = self.attention(*self._encode_pairs(sources, targets))
        places = zip(
            self.subwords.source_places(list(sources)),
            self.subwords.target_line_places(list(targets)),
            strict=True,
        )
        return [
            numbered(
                linked(source, source_places, target, target_places, own),
                (word_starts(source), word_starts(target)),
            )
            for source, target, (source_places, target_places), own in zip(
                sources, targets, places, weights, strict=True
            )
        ]

    def _encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The tokens of both, each with EOS."""
        encoded = (
            self.subwords.encode_source(list(sources)),
            self.subwords.encode_target(list(targets)),
        )
        ended = [[[*tokens, EOS] for tokens in lines] for lines in encoded]
        return ended[0], ended[1]

    def _found(
        self, requests: list[Request], count: int, scored: bool, aligned: Unit | None
    ) -> list[list[Translation]]:
        nothing = Hypothesis([], 0.0, 0.0, finished=True)
        sentences = self._encode(requests)
        searched = self._ranked(self._search(sentences, len(requests), count))
        flat = [(at, it) for at, each in enumerate(searched) for it in each[:count] or [nothing]]
        texts = self.subwords.decode_target([it.tokens for _, it in flat])
        found: list[list[Translation]] = [[] for _ in requests]
        for (at, it), text in zip(flat, texts, strict=True):
            found[at].append(Translation(requests[at].text, text, it))
        if scored:
            self._add(found, sentences, self._token_log_probabilities)
        if aligned:
            self._add(found, sentences, partial(self._links, aligned))
        return found

    def _add(
        self,
        found: list[list[Translation]],
        sentences: dict[int, Sentence],
        values: Callable[[list[Translation], list[Sentence]], list[dict[str, Any]]],
    ) -> None:
        """Puts into the translations of lines that are not blank what a forced pass gives."""
        flat = [(at, nth) for at in sentences for nth in range(len(found[at]))]
        given = values([found[at][nth] for at, nth in flat], [sentences[at] for at, _ in flat])
        for (at, nth), fields in zip(flat, given, strict=True):
            found[at][nth] = replace(found[at][nth], **fields)

    def _token_log_probabilities(
        self, translations: list[Translation], sentences: list[Sentence]
    ) -> list[dict[str, Any]]:
        outputs = [it.hypothesis.output for it in translations]
        gains = self.log_probabilities([it.source for it in sentences], outputs)
        return [{"token_log_probabilities": each} for each in gains]

    def _links(
        self, unit: Unit, translations: list[Translation], sentences: list[Sentence]
    ) -> list[dict[str, Any]]:
        outputs = [it.hypothesis.output for it in translations]
        weights = self.attention([it.source for it in sentences], outputs)
        sources = self.subwords.source_places([it.source for it in translations])
        texts = self.subwords.target_places([it.hypothesis.tokens for it in translations])
        fields: list[dict[str, Any]] = []
        for it, source, text, own in zip(translations, sources, texts, weights, strict=True):
            fields.append({"links": linked(it.source, source, it.text, text, own, unit)})
            if unit == "pieces":
                fields[-1]["piece_starts"] = piece_starts(source), piece_starts(text)
        return fields

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

    def _parts(self, request: Request) -> list[Request]:
        if self.config.on_long_line == "cut" or not request.is_plain:
            return [request]
        return [Request(part) for part in parts(request.text, self._fits)]

    def _fits(self, text: str) -> bool:
        (tokens,) = self.subwords.encode_source([text])
        return len(tokens) < self.config.max_source_length  # and EOS

    def search(self, lines: Sequence[str]) -> list[list[Hypothesis]]:
        """The hypotheses of each line, best first; none for a blank one.

        Sentences of like length share a batch. A line is blank where it is white space, or holds
        nothing that the subwords know.

        Raises:
            TypeError: one string was given.
        """
        refuse_one_string(lines, "lines")
        return self._search(self._encode([Request(line) for line in lines]), len(lines))

    def _search(
        self, sentences: dict[int, Sentence], num_lines: int, count: int = 1
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in range(num_lines)]
        if count == 1:
            lists = self.find(sentences)
        else:
            lists = distinct_lists(self.find, self.subwords.decode_target, sentences, count)
        for at, hypotheses in lists:
            found[at] = hypotheses
            best = hypotheses[0]
            self.target_tokens += len(best.tokens) + best.finished
        return found

    def _encode(self, requests: Sequence[Request]) -> dict[int, Sentence]:
        """The tokens of every line that is not blank."""
        most = self.config.max_source_length - 1  # and EOS
        sentences = {}
        encoded = self.subwords.encode_source([request.text for request in requests])
        for at, (request, tokens) in enumerate(zip(requests, encoded, strict=True)):
            if tokens and not request.text.isspace():
                sentences[at] = Sentence([*tokens[:most], EOS], *self._wanted(request))
                self.truncated += len(tokens) > most
        return sentences

    def _wanted(self, request: Request) -> tuple[list[int], list[list[int]]]:
        """The tokens of the beginning and of the phrases that are asked for."""
        if request.is_plain:
            return [], []
        prefix, *phrases = self.subwords.encode_target([request.prefix, *request.phrases])
        return prefix, [phrase for phrase in phrases if phrase]

    @abstractmethod
    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterable[tuple[int, list[Hypothesis]]]:
        """What is found for each sentence, best first; the sentences in any order.

        At least `count` distinct hypotheses wherever the model has so many.
        """

    @abstractmethod
    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """The log-probability of each token of given targets; sources end with EOS."""

    @abstractmethod
    def attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Tensor]:
        """How much giving each target token attends to each source token: [T, S] for each pair."""


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
                "int8" the model must have been through :func:`nmt.precision.convert`.
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

"""Translate, score and align lines of text, with any engine.

A line is split into sentences or parts, encoded, searched, decoded and joined again. The engine
searches.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from nmt.data.context import DocumentContext
from nmt.data.directions import Direction, Directions
from nmt.data.vocabulary import EOS
from nmt.inference.alignment import Unit, check_unit, linked, numbered, piece_starts
from nmt.inference.consensus import by_consensus
from nmt.inference.documents import (
    check_form,
    fit,
    in_documents,
    joined_key,
    narrowed,
)
from nmt.inference.flags import flags_of, is_untranslated
from nmt.inference.request import (
    Counts,
    Request,
    Sentence,
    Translation,
    TranslationOptions,
    naming_line,
)
from nmt.inference.splitting import parts, space_before, split_sentences
from nmt.inference.terms import Terms
from nmt.io.lines import refuse_one_string
from nmt.languages import has_spaces
from nmt.messages import warn
from nmt.runs.confidence import Confidence
from nmt.search import Hypothesis
from nmt.search.careful import CarefulBeam
from nmt.search.config import SearchConfig
from nmt.search.lexical import placing_phrases
from nmt.subwords.segmenters import TAG
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import directions_of, tagged
from nmt.subwords.words import word_starts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Begun = Callable[[], list[list["Translation"]]]
"""Finishes translations that have begun."""

AnyTranslator = TypeVar("AnyTranslator", bound="LineTranslator")

LONGER = 8
"""Largest factor of the requested number of hypotheses, which bounds the time of the search. Few
sentences need more than two."""

MAX_LIST = 256
"""Number of hypotheses above which a list is at most twice as long as requested. Drawing distinct
samples takes memory that grows with the square of their number."""

MOST_TERMS = 100
"""Largest number of terms of the terminology that a sentence requires, the first ones; the memory
of the search grows with their number."""


class LineTranslator(ABC):
    """Translates, scores and aligns lines; each engine implements the abstract methods.

    Attributes:
        subwords: subwords, which put the tags of the direction before every sentence.
        config: settings of the search for the target language.
        languages: source and target language.
        counts: what was translated so far, also by the translators of other languages of the model.
        engine: the engine that searches; chosen by "auto", with the reason or the export.
        reads_source: whether the model reads the source; a language model does not.
        windows_ahead: number of windows that an engine with threads of its own has in its queue
            while those before become text.
        terminology: terms whose translations every line requires, by direction; a request with
            terminology of its own requires that instead.
        on_sentence: called after the search of each sentence, to show progress; None for nothing.
        confidence: how sure to be of a translation; None if the run is not calibrated.
    """

    engine = "nmt"
    reads_source = True
    windows_ahead = 0

    def __init__(
        self, subwords: Subwords, config: SearchConfig, languages: Direction = ("", "")
    ) -> None:
        self.subwords = subwords
        self.config = config.for_language(languages[1])
        self.languages = languages
        self.counts = Counts()
        self.terminology: Mapping[Direction, Terms] = {}
        self.on_sentence: Callable[[], object] | None = None
        self.confidence: Confidence | None = None
        self._general = subwords, config, languages
        self._chosen_source: str | None = None
        self._by_target: dict[str | None, Any] = {}

    def translate(self, lines: Iterable[str | Request]) -> Iterator[str]:
        """Yield one translation per line, in order; reads at most a few windows of lines ahead.

        Raises:
            TypeError: `lines` is one string.
        """
        return (best.text for best, *_ in self.translations(lines))

    def translate_text(self, text: str) -> str:
        """Translate a text of any length, sentence by sentence.

        Each line is a paragraph; line feeds, and the spaces between sentences, stay. A model of
        documents translates each line as a whole.
        """
        return "\n".join(
            self.translate(Request(line, split_sentences=True) for line in text.split("\n"))
        )

    def translations(
        self,
        lines: Iterable[str | Request],
        count: int = 1,
        scored: bool = False,
        aligned: Unit | None = None,
        retry: bool = False,
    ) -> Iterator[list[Translation]]:
        """Yield at least one and at most `count` translations per line, best first, in order.

        Args:
            lines: any lines; a blank line has one empty translation. If the model was trained with
                context, the lines between blank lines are a document. A :class:`Request` with a
                prefix, phrases or terminology is never split, but cut.
            count: number of distinct translations per line, unless its request has another; fewer
                only if the search finds no more. The n-th translation of a split line joins the
                n-th translation of each part.
            scored: whether to compute the log-probability of each token, in another pass of the
                model over the translations.
            aligned: unit to align with the source, in another pass of the model, or None; see
                :attr:`usual_unit`.
            retry: whether to search a line whose best translation has flags again, by
                :class:`nmt.search.careful.CarefulBeam`, and keep the list with the better first
                translation: fewer flags, then a higher log-probability per token.

        Raises:
            NmtError: the strategy never finds so many translations, the unit is unknown, or an
                export cannot retry, and no line has been read; or a request cannot be fulfilled.
            TypeError: `lines` is one string.
        """
        refuse_one_string(lines, "lines")
        self.config.check_count(count)
        check_unit(aligned)
        if retry:
            self.check_retry()
        # No generator itself, so that wrong arguments are refused at the call.
        return self._by_window(
            lines, TranslationOptions(count=count, scored=scored, aligned=aligned, retry=retry)
        )

    def _by_window(
        self, lines: Iterable[str | Request], options: TranslationOptions
    ) -> Iterator[list[Translation]]:
        waiting = chain.from_iterable(self.in_documents([line] for line in lines))
        begun: deque[Begun] = deque()
        error = None
        while error is None:
            try:
                if not (window := list(islice(waiting, self.config.window))):
                    break
                begun.append(self._begin_window(window, options))
            except Exception as raised:
                error = raised  # the lines before it are translated first
            if len(begun) > self.windows_ahead:
                yield from begun.popleft()()
        for finish in begun:
            yield from finish()
        if error:
            raise error

    def _begin_window(self, lines: Sequence[str | Request], options: TranslationOptions) -> Begun:
        """Begin to translate lines, which may have several target languages."""
        for line in lines:
            if isinstance(line, Request):
                with naming_line(line.text):
                    line.check(self.config, options.count, self.subwords.context is not None)
        requests = [
            self._with_target(line if isinstance(line, Request) else Request(line))
            for line in lines
        ]
        begun = [
            (indices, translator._begin_in_context([requests[at] for at in indices], options))
            for translator, indices in self.by_target(requests)
        ]

        def finish() -> list[list[Translation]]:
            results: dict[int, list[Translation]] = {}
            for indices, finish_target in begun:
                results.update(zip(indices, finish_target(), strict=True))
            return [results[at] for at in range(len(requests))]

        return finish

    def in_documents(
        self, blocks: Iterable[Sequence[str | Request]]
    ) -> Iterator[Sequence[str | Request]]:
        """Return the lines with their context, if the model was trained with context.

        Args:
            blocks: lines as they arrive; a blank line separates two documents.
        """
        context = self.subwords.context
        return iter(blocks) if not context else in_documents(blocks, context, self.subwords)

    def _begin_in_context(self, requests: list[Request], options: TranslationOptions) -> Begun:
        """Begin to translate requests, each with the context that fits the model."""
        if (context := self.subwords.context) is None:
            return self._begin_alone(requests, options)
        # Before lines get context, which lines with terms may have to do without.
        requests = [self._with_terms(request) for request in requests]
        fitted = fit(requests, context, self.config.max_source_length, self.subwords)
        check_form(fitted, context, options)
        return partial(self.translate_joined, fitted, context, options)

    def translate_joined(
        self, requests: Sequence[Request], context: DocumentContext, options: TranslationOptions
    ) -> list[list[Translation]]:
        """Translate each line in its context; lines with the same joined sentences only once.

        Args:
            requests: lines, with the context that fits.
            context: context of the model.
            options: the output for each line.
        """
        waiting = dict(enumerate(requests))
        results: list[list[Translation]] = [[] for _ in requests]
        while waiting:
            keys = {at: joined_key(request, at, context) for at, request in waiting.items()}
            distinct = {keys[at]: request for at, request in waiting.items()}
            lists = self.translate_alone([*distinct.values()], options)
            translations = dict(zip(distinct, lists, strict=True))
            again = {}
            for at, request in waiting.items():
                best, *others = translations[keys[at]]
                lines = best.text.split("\n")
                # A number is the key of a line whose translation holds no other sentence.
                if isinstance(keys[at], int):
                    results[at] = [
                        replace(candidate, text=candidate.text.replace("\n", " "))
                        for candidate in (best, *others)
                    ]
                elif len(lines) == len(request.sentences) and all(map(str.strip, lines)):
                    line = lines[len(request.context)]
                    results[at] = [replace(best, source=request.text, text=line)]
                else:
                    again[at] = narrowed(request)
            waiting = again
        return results

    def translate_alone(
        self, requests: list[Request], options: TranslationOptions
    ) -> list[list[Translation]]:
        """Translate requests as they are, in the languages of this translator: split and join."""
        return self._begin_alone(requests, options)()

    def _begin_alone(self, requests: list[Request], options: TranslationOptions) -> Begun:
        """Split requests and begin to translate their parts; the end joins these."""
        divided = [self._divided(request) for request in requests]
        self.counts.split += sum(any(len(sentence) > 1 for sentence in line) for line in divided)
        lines = [[*chain.from_iterable(line)] for line in divided]
        begun = self._begin_parts([*chain.from_iterable(lines)], options)

        def finish() -> list[list[Translation]]:
            """Join the translations of the parts of each line."""
            results = iter(begun())
            translations = []
            for _, *others in lines:
                joined = next(results)
                for part in others:
                    space = space_before(part.text, self.languages)
                    # The parts of a line may have found different numbers of translations.
                    pairs = zip(joined, next(results), strict=False)
                    joined = [first.followed_by(second, space) for first, second in pairs]
                self.counts.empty += bool(joined[0].source.strip()) and not joined[0].text.strip()
                self.counts.flagged += bool(joined[0].flags)
                if options.scored and self.confidence:
                    joined = [*map(self._with_confidence, joined)]
                translations.append(joined)
            return translations

        return finish

    def _begin_parts(self, requests: list[Request], options: TranslationOptions) -> Begun:
        """Encode lines, each as one sentence, and begin the search."""
        # Without blank lines, which stay blank and need no search.
        sentences = self.encode(requests)
        begun = self._begin_sentences(requests, sentences, options)
        if not options.retry:
            return begun
        return lambda: self._with_retries(begun(), requests, sentences, options)

    def _with_retries(
        self,
        translations: list[list[Translation]],
        requests: Sequence[Request],
        sentences: dict[int, Sentence],
        options: TranslationOptions,
    ) -> list[list[Translation]]:
        """Search flagged lines again, and return the better translations of each line."""
        flagged = [at for at, (best, *_) in enumerate(translations) if best.flags]
        again = {}
        for number, at in enumerate(flagged):
            strategy = CarefulBeam.like(sentences[at].strategy or self.config.strategy)
            again[number] = replace(sentences[at], strategy=strategy)
        finish = self._begin_sentences([requests[at] for at in flagged], again, options)
        for at, others in zip(flagged, finish(), strict=True):
            translations[at] = min(translations[at], others, key=lambda ranking: ranking[0].rank)
        return translations

    def _begin_sentences(
        self,
        requests: Sequence[Request],
        sentences: dict[int, Sentence],
        options: TranslationOptions,
    ) -> Begun:
        """Begin the search of lines whose sentences, by line number, are encoded."""
        counts = [request.n_best or options.count for request in requests]
        # With `mbr`, always search as for one translation. The ranked set then does not depend on
        # n-best, and samples stay independent.
        searched_for = counts if self.config.mbr is None else [1] * len(counts)
        search = self._begin_search(sentences, searched_for)
        return lambda: self._finish_parts(requests, options, sentences, counts, search())

    def _finish_parts(
        self,
        requests: Sequence[Request],
        options: TranslationOptions,
        sentences: dict[int, Sentence],
        counts: list[int],
        hypotheses: list[list[Hypothesis]],
    ) -> list[list[Translation]]:
        """Rank, decode, score and align the hypotheses of each line."""
        ranked = self.ranked(hypotheses)
        # For a blank line, which is not searched.
        nothing = Hypothesis([], 0.0, 0.0, finished=True)
        lists = [
            ranking[:count] or [nothing] for ranking, count in zip(ranked, counts, strict=True)
        ]
        texts = iter(
            self.subwords.decode_target(
                [hypothesis.tokens for group in lists for hypothesis in group]
            )
        )
        # The EOS of a blank line, which the model does not see, is certain.
        certain = (0.0,) if options.scored else ()
        translations = [
            [
                Translation(
                    request.text,
                    next(texts),
                    one,
                    flags=flags_of(sentences[at].source, one, self.subwords.extremes),
                )
                if at in sentences
                else Translation(request.text, next(texts), one, certain)
                for one in ranking
            ]
            for at, (request, ranking) in enumerate(zip(requests, lists, strict=True))
        ]
        if options.scored or options.aligned:
            places = [(at, nth) for at in sentences for nth in range(len(translations[at]))]
            sources = [sentences[at].source for at, _ in places]
            changed = [translations[at][nth] for at, nth in places]
            if options.scored:
                changed = self._with_scores(changed, sources)
            if options.aligned:
                changed = self._with_links(changed, sources, options.aligned)
            for (at, nth), translation in zip(places, changed, strict=True):
                translations[at][nth] = translation
        return translations

    def encode(self, requests: Sequence[Request]) -> dict[int, Sentence]:
        """Return the tokens of every line that is not blank, by line number."""
        most = self.config.max_source_length - 1  # and EOS
        texts = [
            "\n".join((*request.context, request.text, *request.following)) for request in requests
        ]
        encoded = self.subwords.encode_source(texts)
        extremes = self.subwords.extremes
        sentence_ends = self.subwords.sentence_ends if extremes else frozenset()
        sentences = {}
        for at, (request, tokens) in enumerate(zip(requests, encoded, strict=True)):
            if not tokens or request.text.isspace():
                continue
            source = [*tokens[:most], EOS]
            asked = self._with_terms(request)
            if asked.prefix or asked.phrases or asked.avoid or asked.terminology:
                with naming_line(request.text):
                    sentences[at] = asked.encode(source, self.subwords, self.languages[0])
            else:
                sentences[at] = Sentence(source, self.subwords.tags[1], strategy=request.strategy)
            if (
                extremes
                and extremes.are_exceeded(source, sentence_ends)
                and request.is_plain
                and self.config.on_long_line == "cut"
                and not self._splits(request)
            ):
                self.counts.beyond_training += 1
            self.counts.truncated += len(tokens) > most
            self.counts.unsplittable += len(tokens) > most and not request.is_plain
        return sentences

    def _with_terms(self, request: Request) -> Request:
        """Return a request that requires the translations of the terminology's terms in its line.

        Raises:
            NmtError: the strategy cannot place phrases.
        """
        terms = self.terminology.get(self.languages)
        if terms is None or request.terminology:
            return request
        translations = [
            translation
            for translation in terms.required(request.text, self.languages[0])[:MOST_TERMS]
            # What the line itself avoids comes before the glossary of the run.
            if not any(phrase in translation for phrase in request.avoid)
        ]
        if not translations:
            return request
        phrases = tuple(dict.fromkeys((*request.phrases, *translations)))
        with naming_line(request.text):
            strategy = placing_phrases(request.strategy or self.config.strategy)
        return replace(request, phrases=phrases, strategy=strategy)

    def _begin_search(
        self, sentences: dict[int, Sentence], counts: Sequence[int]
    ) -> Callable[[], list[list[Hypothesis]]]:
        """Begin to search hypotheses of each line, up to its count; equal lines only once."""
        equal: dict[Hashable, list[int]] = {}
        for at, sentence in sentences.items():
            equal.setdefault((counts[at], sentence.key), []).append(at)
        lines = {same[0]: same for same in equal.values()}
        begun = []
        # Lines with the same count share batches.
        for count in sorted(set(counts)):
            alike = {at: sentences[at] for at in lines if counts[at] == count}
            begun.append(self.find(alike) if count == 1 else self.find_distinct(alike, count))

        def finish() -> list[list[Hypothesis]]:
            """Read the results, and give equal lines the same hypotheses."""
            results: list[list[Hypothesis]] = [[] for _ in counts]
            for first, hypotheses in chain.from_iterable(begun):
                best = hypotheses[0]
                for at in lines[first]:
                    results[at] = hypotheses
                    self.counts.target_tokens += len(best.tokens) + best.finished
                    if self.on_sentence:
                        self.on_sentence()
            return results

        return finish

    def find_distinct(
        self, sentences: dict[int, Sentence], count: int
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search `count` hypotheses with distinct texts, where the search finds so many.

        Hypotheses differ in their tokens, but several may segment the same text into different
        subwords. If too few distinct texts remain, the search runs again for a list twice as long,
        up to a limit. After that, the list of a sentence stays too short.
        """
        asked, longest = count, max(2 * count, min(LONGER * count, MAX_LIST))
        while sentences:
            too_few = {}
            for at, hypotheses in self.find(sentences, asked):
                by_text: dict[str, Hypothesis] = {}
                texts = self.subwords.decode_target([one.tokens for one in hypotheses])
                for text, hypothesis in zip(texts, hypotheses, strict=True):
                    by_text.setdefault(text, hypothesis)
                # If fewer were found than asked for, a longer list would hold no more.
                if len(by_text) < count and len(hypotheses) >= asked and asked < longest:
                    too_few[at] = sentences[at]
                else:
                    yield at, list(by_text.values())
            sentences, asked = too_few, min(2 * asked, longest)

    @abstractmethod
    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterable[tuple[int, list[Hypothesis]]]:
        """Search the hypotheses of each sentence.

        Args:
            sentences: sentences by line number.
            count: number of distinct hypotheses per sentence, wherever the model has so many.

        Returns:
            The line number and the hypotheses, best first, of each sentence; sentences in any
            order.
        """

    def search(self, lines: Sequence[str]) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line, best first; none for a blank line.

        Sentences of similar length share a batch. A line is blank if it consists of white space or
        has no subwords.

        Raises:
            TypeError: `lines` is one string.
        """
        refuse_one_string(lines, "lines")
        sentences = self.encode([Request(line) for line in lines])
        return self._begin_search(sentences, [1] * len(lines))()

    def ranked(self, lists: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Rank the hypotheses of each line by their agreement if `search.mbr` is set."""
        if (metric := self.config.mbr) is None:
            return lists
        most, decode = self.config.mbr_pruning, self.subwords.decode_target
        texts = [decode([hypothesis.tokens for hypothesis in ranking]) for ranking in lists]
        return [by_consensus(*pair, metric, most) for pair in zip(lists, texts, strict=True)]

    def _with_target(self, request: Request) -> Request:
        """Take the tag before a line that will be split as the target language of all its parts."""
        tag = TAG.match(request.text)
        if not tag or tag[0] not in self.subwords.source.tags:
            return request
        if request.target_lang is not None or self.subwords.tags != ([], []):
            return request  # the caller has already chosen the direction
        if self.subwords.directions is not None:
            return request  # no text can choose among the directions of training
        # Parts after the first one would have lost the tag.
        rest = replace(request, text=request.text[tag.end() :].lstrip(), target_lang=tag[1])
        return rest if len([*chain.from_iterable(self._divided(rest))]) > 1 else request

    def _divided(self, request: Request) -> list[list[Request]]:
        """Return the sentences of a line, if they are split, each as its parts that fit."""
        splits_sentences = self._splits(request)
        splits_long = splits_sentences or self.config.on_long_line == "split"
        if not splits_long or not request.is_plain:
            return [[request]]
        language = self.languages[0]
        texts = split_sentences(request.text, language) if splits_sentences else [request.text]
        return [
            [
                replace(request, text=part)
                for part in (parts(text, self._fits) if splits_long else [text])
            ]
            for text in texts
        ]

    def _splits(self, request: Request) -> bool:
        """Return whether the sentences of a line are translated one by one."""
        if self.subwords.context is not None:  # each sentence would need its context
            return False
        wanted = request.split_sentences
        return self.config.split_sentences if wanted is None else wanted

    def _fits(self, text: str) -> bool:
        (tokens,) = self.subwords.encode_source([text])
        return len(tokens) < self.config.max_source_length  # and EOS

    @property
    @abstractmethod
    def survives_fork(self) -> bool:
        """Whether processes that are forked from this one can translate."""

    @abstractmethod
    def search_alone(self) -> None:
        """Search all batches in this process, which may be a worker itself."""

    def check_retry(self) -> None:  # noqa: B027
        """Raise an NmtError if the translator cannot search lines again."""

    @property
    def in_torch(self) -> LineTranslator:
        """The translator of the same model in this package, whose engine can do everything."""
        return self

    @property
    def usual_unit(self) -> Unit:
        """Default unit of alignments: pieces if a language has no spaces between words."""
        return "words" if all(map(has_spaces, self.languages)) else "pieces"

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Return the log-probability of each token of given translations, the EOS last.

        Args:
            sources: lines.
            targets: the translation of each line.

        Raises:
            TypeError: `sources` or `targets` is one string.
            ValueError: their numbers differ.
        """
        return self.log_probabilities(*self._encode_pairs(sources, targets))

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Align the words of given translations with the words of the sources.

        Args:
            sources: lines.
            targets: the translation of each line.

        Returns:
            For each pair of lines, pairs of a source word and a target word, numbered from 0.

        Raises:
            TypeError: `sources` or `targets` is one string.
            ValueError: their numbers differ.
            NmtError: the model has no attention.
        """
        weights = self.text_attention(*self._encode_pairs(sources, targets))
        pairs = zip(
            sources,
            self.subwords.source_offsets(list(sources)),
            targets,
            self.subwords.target_line_offsets(list(targets)),
            weights,
            strict=True,
        )
        return [
            numbered(
                linked(source, source_offsets, target, target_offsets, pair_weights),
                (word_starts(source), word_starts(target)),
            )
            for source, source_offsets, target, target_offsets, pair_weights in pairs
        ]

    @abstractmethod
    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Return the log-probability of each token of given targets; sources end with EOS."""

    @abstractmethod
    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """Return the attention of each target token to each source token: [T, S] for each pair."""

    def text_attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """Return the attention as :meth:`attention` does, without the rows and columns of tags."""
        source, target = map(len, self.subwords.tags)
        return [weights[target:, source:] for weights in self.attention(sources, targets)]

    def _encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the tokens of sources and targets, each with EOS."""
        refuse_one_string(sources, "sources")
        refuse_one_string(targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources, but {len(targets)} targets")
        source_tokens = self.subwords.encode_source(list(sources))
        target_tokens = self.subwords.encode_target(list(targets))
        return [[*ids, EOS] for ids in source_tokens], [[*ids, EOS] for ids in target_tokens]

    def _with_confidence(self, translation: Translation) -> Translation:
        """Return a scored translation with the confidence in it; the run is calibrated."""
        assert self.confidence is not None
        log_probs = translation.token_log_probabilities
        value = self.confidence.of(log_probs, translation.source, translation.text)
        return replace(translation, confidence=value)

    def _with_scores(
        self, translations: Sequence[Translation], sources: Sequence[list[int]]
    ) -> list[Translation]:
        """Return translations with the log-probability of each token; sources end with EOS."""
        outputs = [translation.hypothesis.output for translation in translations]
        return [
            replace(translation, token_log_probabilities=log_probs)
            for translation, log_probs in zip(
                translations, self.log_probabilities(sources, outputs), strict=True
            )
        ]

    def _with_links(
        self, translations: Sequence[Translation], sources: Sequence[list[int]], unit: Unit
    ) -> list[Translation]:
        """Return translations whose units are aligned with the source's; sources end with EOS.

        Raises:
            NmtError: the model has no attention.
        """
        outputs = [translation.hypothesis.output for translation in translations]
        weights = self.text_attention(sources, outputs)
        lines = self.subwords.source_offsets([translation.source for translation in translations])
        texts = self.subwords.target_offsets(
            [translation.hypothesis.tokens for translation in translations]
        )
        aligned = []
        for translation, line, text, pair_weights in zip(
            translations, lines, texts, weights, strict=True
        ):
            links = linked(translation.source, line, translation.text, text, pair_weights, unit)
            starts = (piece_starts(line), piece_starts(text)) if unit == "pieces" else None
            flags = translation.flags
            if is_untranslated(pair_weights):
                flags = (*flags, "untranslated")
            aligned.append(replace(translation, links=links, piece_starts=starts, flags=flags))
        return aligned

    def fields(self, translation: Translation, aligned: Unit | None = None) -> dict[str, Any]:
        """Return the JSON object of a translation; docs/outputs.md describes the fields.

        Args:
            translation: one that was scored.
            aligned: unit that was aligned; None without alignments. Aligned tokens are given as the
                words that they are in.

        Raises:
            NmtError: the unit is unknown.
        """
        check_unit(aligned)
        hypothesis = translation.hypothesis
        units: dict[str, Any] = {}
        if aligned:
            kind = "pieces" if aligned == "pieces" else "words"  # "tokens" are the subwords
            units = {kind: translation.units()[1], "alignment": translation.alignment()}
        return {
            "text": translation.text,
            "score": hypothesis.score,
            "log_probability": hypothesis.log_probability,
            "finished": hypothesis.finished,
            "flags": list(translation.flags),
            "tokens": self.subwords.target_pieces(hypothesis.output),
            "token_log_probabilities": list(translation.token_log_probabilities),
            **units,
            **({} if translation.confidence is None else {"confidence": translation.confidence}),
        }

    @property
    def directions(self) -> Directions:
        """The trained directions or, if the model does not name them, one for each of its tags."""
        subwords, _, languages = self._general
        return directions_of(subwords, languages)

    @property
    def needs_target(self) -> bool:
        """Whether no target language was chosen; with several, each line must name one."""
        return bool(self.subwords.directions) and self.subwords.tags == ([], [])

    def for_direction(
        self: AnyTranslator, target: str | None = None, source: str | None = None
    ) -> AnyTranslator:
        """Return a translator of the same model for a direction.

        Args:
            target: target language; None for the only one. If the text may begin with tags, as for
                a model of OPUS-MT, None leaves the tags to the text.
            source: source language; None for any. If the direction was not trained, a warning says
                so.

        Raises:
            NmtError: the model does not have these languages.
        """
        subwords, config, _ = self._general
        if target is None and source is None and subwords.directions is None:
            return self
        direction = self.directions.choose(target, source)
        is_main = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun
        if direction not in self.directions and is_main:
            warn(f"{direction[0]} to {direction[1]} was not trained: the translation is zero-shot")
        # Shallow: all directions share the model, its workers and the counts.
        chosen = copy.copy(self)
        chosen.subwords = tagged(subwords, direction)
        chosen.config = config.for_language(direction[1])
        chosen.languages = direction
        chosen._chosen_source = source
        chosen._by_target = {}
        return chosen

    def in_direction_of(self, other: LineTranslator) -> LineTranslator:
        """Return this translator for the direction of another translator of the same model."""
        if other.languages == self.languages and other.subwords.tags == self.subwords.tags:
            return self
        return self.for_direction(other.languages[1], other._chosen_source)

    def for_target(self: AnyTranslator, target: str | None) -> AnyTranslator:
        """Return the translator of a line that chooses its target language, made only once.

        The source language stays if it was chosen.

        Args:
            target: target language; None for this translator's.

        Raises:
            NmtError: the model does not have the language, it is the chosen source language, or the
                model needs one.
        """
        if target is None and not self.needs_target:
            return self
        if target not in self._by_target:
            self._by_target[target] = self.for_direction(target, self._chosen_source)
        chosen: AnyTranslator = self._by_target[target]
        return chosen

    def by_target(
        self: AnyTranslator, requests: Sequence[Request]
    ) -> Iterator[tuple[AnyTranslator, list[int]]]:
        """Yield the translator of each target language, with the indices of its requests.

        A blank line needs no language.

        Raises:
            NmtError: the model does not have a language.
        """
        any_target = self.directions.targets[0] if self.needs_target else None
        targets = [
            request.target_lang or (None if request.text.strip() else any_target)
            for request in requests
        ]
        for target in dict.fromkeys(targets):
            indices = [at for at, other in enumerate(targets) if other == target]
            with naming_line(requests[indices[0]].text):
                translator = self.for_target(target)
            yield translator, indices

    def by_direction(self: AnyTranslator) -> list[AnyTranslator]:
        """Return a translator for each trained direction."""
        trained = self.directions.trained
        if len(trained) == 1:
            return [self]
        return [self.for_direction(target, source) for source, target in trained]

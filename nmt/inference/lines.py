"""Translate lines with any engine: windows of requests, long lines, context and n-best lists.

Forced decoding of lines: what a model says of given translations, with any engine.

The direction of a translator, and the choice of another direction of the same model.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from torch import Tensor

from nmt.data.directions import Direction, Directions
from nmt.data.vocabulary import EOS
from nmt.inference.alignment import Unit, check_unit, linked, numbered, piece_starts, word_starts
from nmt.inference.documents import check_form, fit, in_documents, translate_joined
from nmt.inference.lists import by_consensus, distinct_lists
from nmt.inference.request import (
    Counts,
    Request,
    Sentence,
    Translation,
    naming_line,
    parts,
    space_before,
)
from nmt.io.lines import refuse_one_string
from nmt.languages import has_spaces
from nmt.messages import warn
from nmt.search import Hypothesis
from nmt.search.config import SearchConfig
from nmt.subwords.segmenters import TAG
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import directions_of, tagged

AnyDirected = TypeVar("AnyDirected", bound="Directed")

Result = TypeVar("Result")


class Directed:
    """The languages of a translator, and the values that depend on them.

    Attributes:
        subwords: subwords, which put the tags of the direction before every sentence.
        config: settings of the search, with those of the target language.
        languages: source and target language.
    """

    def __init__(self, subwords: Subwords, config: SearchConfig, languages: Direction) -> None:
        self.subwords = subwords
        self.config = config.for_language(languages[1])
        self.languages = languages
        self._general = subwords, config, languages
        self._chosen_source: str | None = None
        self._by_target: dict[str | None, Any] = {}

    @property
    def directions(self) -> Directions:
        """The directions of the model: those trained or, of other models, those of its tags."""
        subwords, _, languages = self._general
        return directions_of(subwords, languages)

    @property
    def needs_target(self) -> bool:
        """Whether no target language was chosen; with several, each line must name one."""
        return bool(self.subwords.directions) and self.subwords.tags == ([], [])

    def into(
        self: AnyDirected, target: str | None = None, source: str | None = None
    ) -> AnyDirected:
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
        if direction not in self.directions.trained and is_main:
            warn(f"{direction[0]} to {direction[1]} was not trained: the translation is zero-shot")
        chosen = copy.copy(self)
        chosen.subwords = tagged(subwords, direction)
        chosen.config = config.for_language(direction[1])
        chosen.languages = direction
        chosen._chosen_source = source
        chosen._by_target = {}
        return chosen

    def into_target(self: AnyDirected, target: str | None) -> AnyDirected:
        """Return the translator of a line that chooses its target language, made only once.

        The source language stays if it was chosen.

        Args:
            target: target language; None for that of this translator.

        Raises:
            NmtError: the model does not have the language, it is the chosen source language, or the
                model needs one.
        """
        if target is None and not self.needs_target:
            return self
        if target not in self._by_target:
            self._by_target[target] = self.into(target, self._chosen_source)
        chosen: AnyDirected = self._by_target[target]
        return chosen

    def by_direction(self: AnyDirected) -> list[AnyDirected]:
        """Return a translator for each trained direction."""
        trained = self.directions.trained
        return [self] if len(trained) == 1 else [self.into(one[1], one[0]) for one in trained]


def by_target(
    translator: AnyDirected,
    requests: Sequence[Request],
    translate: Callable[[AnyDirected, list[Request]], Iterable[Result]],
) -> list[Result]:
    """Return the result of each request from the translator of its target language.

    Args:
        translator: translator of the requests that name no target language.
        requests: lines; a blank one needs no language.
        translate: returns the results of requests with the same target language.

    Raises:
        NmtError: the model does not have a language.
    """
    any_target = translator.directions.targets[0] if translator.needs_target else None
    targets = [
        request.target_lang or (None if request.text.strip() else any_target)
        for request in requests
    ]
    results: dict[int, Result] = {}
    for target in dict.fromkeys(targets):
        chosen = [at for at, wanted in enumerate(targets) if wanted == target]
        with naming_line(requests[chosen[0]].text):
            of_this_target = translator.into_target(target)
        results.update(
            zip(chosen, translate(of_this_target, [requests[at] for at in chosen]), strict=True)
        )
    return [results[at] for at in range(len(requests))]


class ForcedDecoder(Directed, ABC):
    """Scores and aligns given translations; each engine implements the two passes of its model."""

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
        offsets = zip(
            self.subwords.source_offsets(list(sources)),
            self.subwords.target_line_offsets(list(targets)),
            strict=True,
        )
        return [
            numbered(
                linked(source, source_offsets, target, target_offsets, pair_weights),
                (word_starts(source), word_starts(target)),
            )
            for source, target, (source_offsets, target_offsets), pair_weights in zip(
                sources, targets, offsets, weights, strict=True
            )
        ]

    def with_scores(
        self, translations: Sequence[Translation], sources: Sequence[list[int]]
    ) -> list[Translation]:
        """Return translations with the log-probability of each token.

        Args:
            translations: what a search found.
            sources: the tokens of each source, with EOS.
        """
        outputs = [translation.hypothesis.output for translation in translations]
        return [
            replace(translation, token_log_probabilities=log_probs)
            for translation, log_probs in zip(
                translations, self.log_probabilities(sources, outputs), strict=True
            )
        ]

    def with_links(
        self, translations: Sequence[Translation], sources: Sequence[list[int]], unit: Unit
    ) -> list[Translation]:
        """Return translations whose units are aligned with those of the source.

        Args:
            translations: what a search found.
            sources: the tokens of each source, with EOS.
            unit: units to align.

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
            aligned.append(replace(translation, links=links, piece_starts=starts))
        return aligned

    def text_attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[Tensor]:
        """Return the attention as :meth:`attention` does, without that of and to tags."""
        source, target = map(len, self.subwords.tags)
        return [weights[target:, source:] for weights in self.attention(sources, targets)]

    @abstractmethod
    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Return the log-probability of each token of given targets; sources end with EOS."""

    @abstractmethod
    def attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Tensor]:
        """Return the attention of each target token to each source token: [T, S] for each pair."""

    def _encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the tokens of sources and targets, each with EOS."""
        refuse_one_string(sources, "sources")
        refuse_one_string(targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources, but {len(targets)} targets")
        encoded = (
            self.subwords.encode_source(list(sources)),
            self.subwords.encode_target(list(targets)),
        )
        ended = [[[*tokens, EOS] for tokens in lines] for lines in encoded]
        return ended[0], ended[1]


Pass = Callable[[Sequence[Translation], Sequence[list[int]]], list[Translation]]
"""Adds to translations what the model says of them, given the tokens of their sources."""


class LineTranslator(ForcedDecoder):
    """A translator of lines; each engine implements a subclass.

    Attributes:
        counts: what was translated so far, also by the translators of other languages of the model.
    """

    def __init__(
        self, subwords: Subwords, config: SearchConfig, languages: tuple[str, str] = ("", "")
    ) -> None:
        super().__init__(subwords, config, languages)
        self.counts = Counts()

    def translate(self, lines: Iterable[str | Request]) -> Iterator[str]:
        """Yield one translation per line, in order; reads at most a window of lines ahead.

        Raises:
            TypeError: `lines` is one string.
        """
        return (best.text for best, *_ in self.translations(lines))

    def translations(
        self,
        lines: Iterable[str | Request],
        count: int = 1,
        scored: bool = False,
        aligned: Unit | None = None,
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

        Raises:
            NmtError: the strategy never finds so many translations, or the unit is unknown, and no
                line has been read; or a request cannot be fulfilled.
            TypeError: `lines` is one string.
        """
        refuse_one_string(lines, "lines")
        self.config.check_count(count)
        check_unit(aligned)
        return self._translations(lines, count, scored, aligned)

    def _translations(
        self, lines: Iterable[str | Request], count: int, scored: bool, aligned: Unit | None
    ) -> Iterator[list[Translation]]:
        waiting = chain.from_iterable(self.in_documents([line] for line in lines))
        while window := list(islice(waiting, self.config.window)):
            requests = [
                self._with_target(line if isinstance(line, Request) else Request(line))
                for line in window
            ]
            for request in requests:
                with naming_line(request.text):
                    request.check(self.config, count, self.subwords.context is not None)
            in_context = partial(_in_context, count=count, scored=scored, aligned=aligned)
            yield from by_target(self, requests, in_context)

    def in_documents(
        self, blocks: Iterable[Sequence[str | Request]]
    ) -> Iterator[Sequence[str | Request]]:
        """Return the lines with their context, if the model was trained with context.

        Args:
            blocks: lines as they arrive; a blank line is between two documents.
        """
        context = self.subwords.context
        return iter(blocks) if not context else in_documents(blocks, context, self.count_tokens)

    def count_tokens(self, lines: list[str]) -> list[int]:
        """Return the length of each line in tokens, with EOS."""
        return [len(tokens) + 1 for tokens in self.subwords.encode_source(lines)]

    def translate_alone(
        self, requests: list[Request], count: int, scored: bool, aligned: Unit | None
    ) -> Iterator[list[Translation]]:
        """Yield the translations of requests as they are, in the language of this translator."""
        divided = [self._parts(request) for request in requests]
        self.counts.split += sum(len(line) > 1 for line in divided)
        parts_of_all = [part for line in divided for part in line]
        results = iter(self._translate_parts(parts_of_all, count, scored, aligned))
        for _, *others in divided:
            joined = next(results)
            for part in others:
                space = space_before(part.text, self.languages)
                pairs = zip(joined, next(results), strict=False)
                joined = [first.followed_by(second, space) for first, second in pairs]
            self.counts.empty += bool(joined[0].source.strip()) and not joined[0].text.strip()
            yield joined

    def fields(self, translation: Translation, aligned: Unit | None = None) -> dict[str, Any]:
        """Return what JSON says of a translation; docs/outputs.md describes the fields.

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
            "tokens": self.subwords.target_pieces(hypothesis.output),
            "token_log_probabilities": list(translation.token_log_probabilities),
            **units,
        }

    def _translate_parts(
        self, requests: list[Request], count: int, scored: bool, aligned: Unit | None
    ) -> list[list[Translation]]:
        nothing = Hypothesis([], 0.0, 0.0, finished=True)
        sentences = self.encode(requests)
        counts = [request.n_best or count for request in requests]
        # What hypotheses agree on is decided among the same ones, however many are listed; samples
        # are independent only if one translation is searched for.
        searched_for = counts if self.config.mbr is None else [1] * len(counts)
        searched = self.ranked(self._search(sentences, searched_for))
        flat = [
            (at, hypothesis)
            for at, (hypotheses, wanted) in enumerate(zip(searched, counts, strict=True))
            for hypothesis in hypotheses[:wanted] or [nothing]
        ]
        texts = self.subwords.decode_target([hypothesis.tokens for _, hypothesis in flat])
        translations: list[list[Translation]] = [[] for _ in requests]
        for (at, hypothesis), text in zip(flat, texts, strict=True):
            # Of a blank line, which the passes below leave out, EOS is certain.
            log_probs = (0.0,) if scored and at not in sentences else ()
            line = requests[at].text
            translations[at].append(Translation(line, text, hypothesis, log_probs))
        passes: list[Pass] = [self.with_scores] if scored else []
        if aligned:
            passes.append(partial(self.with_links, unit=aligned))
        for forced in passes:  # over the translations of lines that are not blank
            places = [(at, nth) for at in sentences for nth in range(len(translations[at]))]
            sources = [sentences[at].source for at, _ in places]
            changed = forced([translations[at][nth] for at, nth in places], sources)
            for (at, nth), translation in zip(places, changed, strict=True):
                translations[at][nth] = translation
        return translations

    def _with_target(self, request: Request) -> Request:
        """Take the tag before a line that will be split as the target language of all its parts."""
        tag = TAG.match(request.text)
        if not tag or tag[0] not in self.subwords.source.tags:
            return request
        if request.target_lang is not None or self.subwords.tags != ([], []):
            return request  # the direction has been chosen in another way
        if self.subwords.directions is not None:
            return request  # no text can choose among the directions of training
        rest = replace(request, text=request.text[tag.end() :].lstrip(), target_lang=tag[1])
        return rest if len(self._parts(request)) > 1 else request

    def _parts(self, request: Request) -> list[Request]:
        if self.config.on_long_line == "cut" or not request.is_plain:
            return [request]
        return [replace(request, text=part) for part in parts(request.text, self._fits)]

    def _fits(self, text: str) -> bool:
        (tokens,) = self.subwords.encode_source([text])
        return len(tokens) < self.config.max_source_length  # and EOS

    def search(self, lines: Sequence[str]) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line, best first; none for a blank line.

        Sentences of similar length share a batch. A line is blank if it consists of white space or
        has no subwords.

        Raises:
            TypeError: `lines` is one string.
        """
        refuse_one_string(lines, "lines")
        return self._search(self.encode([Request(line) for line in lines]), [1] * len(lines))

    def ranked(self, lists: Sequence[list[Hypothesis]]) -> Sequence[list[Hypothesis]]:
        """Rank the hypotheses of each line by their agreement if `search.mbr` is set."""
        if (metric := self.config.mbr) is None:
            return lists
        return by_consensus(lists, self.subwords.decode_target, metric, self.config.mbr_pruning)

    def _search(
        self, sentences: dict[int, Sentence], counts: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line, as many as its count."""
        results: list[list[Hypothesis]] = [[] for _ in counts]
        for count in sorted(set(counts)):
            alike = {at: sentence for at, sentence in sentences.items() if counts[at] == count}
            if count == 1:
                lists = self.find(alike)
            else:
                lists = distinct_lists(self.find, self.subwords.decode_target, alike, count)
            for at, hypotheses in lists:
                results[at] = hypotheses
                best = hypotheses[0]
                self.counts.target_tokens += len(best.tokens) + best.finished
        return results

    def encode(self, requests: Sequence[Request]) -> dict[int, Sentence]:
        """Return the tokens of every line that is not blank, by line number."""
        most = self.config.max_source_length - 1  # and EOS
        spaced = has_spaces(self.languages[0])
        sentences = {}
        texts = ["\n".join(request.sentences) for request in requests]
        encoded = self.subwords.encode_source(texts)
        for at, (request, tokens) in enumerate(zip(requests, encoded, strict=True)):
            if tokens and not request.text.isspace():
                with naming_line(request.text):
                    sentences[at] = request.encode([*tokens[:most], EOS], self.subwords, spaced)
                self.counts.truncated += len(tokens) > most
        return sentences

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


def _in_context(
    translator: LineTranslator,
    requests: list[Request],
    count: int,
    scored: bool,
    aligned: Unit | None,
) -> Iterable[list[Translation]]:
    """Return the translations of requests, each with as much context as the model takes."""
    translate = partial(translator.translate_alone, count=count, scored=scored, aligned=aligned)
    if (context := translator.subwords.context) is None:
        return translate(requests)
    most = translator.config.max_source_length
    fitted = fit(requests, context, most, translator.count_tokens)
    check_form(fitted, context, count > 1 or scored, bool(aligned))
    return translate_joined(fitted, context, translate)

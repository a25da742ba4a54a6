"""Translate lines with any engine: windows of requests, long lines, context and n-best lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from nmt.data.vocabulary import EOS
from nmt.inference.alignment import Unit, check_unit
from nmt.inference.bayes_risk import by_consensus
from nmt.inference.config import SearchConfig
from nmt.inference.directed import by_target
from nmt.inference.distinct import distinct_lists
from nmt.inference.documents import check_form, fit, in_documents, translate_joined
from nmt.inference.forced_decoder import ForcedDecoder
from nmt.inference.long_lines import parts, space_before
from nmt.inference.request import Request, Sentence, naming_line
from nmt.inference.translation import Counts, Translation
from nmt.io.lines import refuse_one_string
from nmt.languages import has_spaces
from nmt.preprocess.segmenters import TAG
from nmt.preprocess.subwords import Subwords
from nmt.search import Hypothesis

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

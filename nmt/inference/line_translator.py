"""Translate lines with any engine: batches, n-best lists, alignments and minimum Bayes risk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from nmt.data.vocabulary import EOS
from nmt.evaluation.consensus import expected_utilities
from nmt.inference.alignment import Unit, linked, numbered, piece_starts, word_starts
from nmt.inference.distinct import distinct_lists
from nmt.inference.long_lines import parts
from nmt.inference.translation import Request, Sentence, Translation
from nmt.io.lines import refuse_one_string
from nmt.languages import has_spaces
from nmt.search import Hypothesis

if TYPE_CHECKING:
    from nmt.preprocess.subwords import Subwords
from nmt.inference.config import SearchConfig

T = TypeVar("T")


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
        log_probs = self.log_probabilities([it.source for it in sentences], outputs)
        return [{"token_log_probabilities": each} for each in log_probs]

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

"""A line to translate, the requirements on its translation, and the translation."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING

from nmt.errors import NmtError
from nmt.inference.alignment import Links, Unit, numbered
from nmt.inference.flags import Flag
from nmt.inference.terms import Terms
from nmt.io.lines import refuse_one_string
from nmt.languages import is_unspaced
from nmt.recipe.config import build
from nmt.search import Hypothesis, Strategy
from nmt.search.config import SearchConfig
from nmt.subwords.words import as_read, word_starts, words
from nmt.subwords.wrappers import refuse_beginnings

if TYPE_CHECKING:
    from nmt.subwords.subwords import Subwords

MOST_SHOWN = 80
"""Characters of a line that a message shows at most."""


@dataclass(frozen=True)
class Request:
    """A line to translate, and requirements on its translation.

    Requests are the same in Python, in ``nmt translate --json-input``, and in ``nmt serve``.
    """

    text: str
    """The line, without a line feed."""

    prefix: str = ""
    """Beginning of the translation; its last word may continue, as "trans" to "translation"."""

    phrases: tuple[str, ...] = ()
    """Phrases that the translation must contain, in any order. Each begins with a word; its last
    word may continue, as "Vertrag" to "Vertrags"."""

    avoid: tuple[str, ...] = ()
    """Phrases that the translation must not contain, as the pieces into which they are cut."""

    terminology: dict[str, str] = field(default_factory=dict)
    """Translations of terms: where the line contains a term, its translation must appear, as a
    phrase; or the term itself, if its translation is empty. See :class:`nmt.inference.terms.Terms`.
    A line with terminology of its own does without the translator's."""

    target_lang: str | None = None
    """Target language of this line, of a multilingual model; None for the translator's."""

    context: tuple[str, ...] = ()
    """The lines before this one in its document, for a model that was trained with context."""

    following: tuple[str, ...] = ()
    """The lines after this one in its document, for a model of whole documents."""

    strategy: Strategy | None = None
    """Search strategy for this line; None for the translator's."""

    n_best: int | None = None
    """Number of distinct translations of this line; None for the number of other lines."""

    split_sentences: bool | None = None
    """Whether to translate each sentence of this line by itself; None for the translator's
    setting."""

    @classmethod
    def read(
        cls, values: object, where: str, config: SearchConfig, has_context: bool = True
    ) -> Request:
        """Return the request that plain values, such as a JSON object, describe.

        Args:
            values: the fields of a request; keys of `strategy` override the configuration's.
            where: place of the values, for messages.
            config: settings of the search.
            has_context: whether the model was trained with context.

        Raises:
            NmtError: a field is unknown, or a value is wrong.
        """
        if not isinstance(values, Mapping) or "text" not in values:
            raise NmtError(f'{where}: expected an object with the field "text"')
        has_strategy = values.get("strategy") is not None
        base = cls("", strategy=config.strategy if has_strategy else None)
        request = build(cls, values, where, base)
        for name in values:
            if name not in ("strategy", "n_best", "split_sentences"):
                _refuse_numbers(values[name], f"{where}.{name}")
        if "" in map(as_read, request.terminology):
            raise NmtError(f"{where}: terminology has an empty term; leave it out")
        if "\n" in request.text:
            raise NmtError(f"{where}: text is several lines; make a request of each")
        if any("\n" in line for line in request.sentences):
            raise NmtError(f"{where}: an entry of context or following is several lines")
        try:
            request.check(config, has_context=has_context)
        except NmtError as error:
            raise NmtError(f"{where}: {error}") from None
        return request

    def check(self, config: SearchConfig, count: int = 1, has_context: bool = True) -> None:
        """Check what can be known before the search.

        Args:
            config: settings of the search.
            count: number of translations of lines that ask for no other.
            has_context: whether the model was trained with context.

        Raises:
            NmtError: the strategy cannot find so many translations, or cannot place phrases; or the
                model takes no context.
            TypeError: one string was given for several, or no strategy.
        """
        for name in ("phrases", "avoid", "context", "following"):
            refuse_one_string(getattr(self, name), name)
        if not isinstance(self.strategy, (Strategy, NoneType)):
            raise TypeError(
                f"strategy: expected a strategy such as nmt.search.Beam(beam=8), not "
                f"{self.strategy!r}"
            )
        if len(self.sentences) > 1 and not has_context:
            raise NmtError(
                "context: the model was trained on single sentences; leave it out, or train a "
                "model with preprocess.documents"
            )
        strategy = self.strategy or config.strategy
        if self.n_best is not None and self.n_best < 1:
            raise NmtError(f"n_best must be at least 1, not {self.n_best}")
        if self.strategy or self.n_best:
            replace(config, strategy=strategy).check_count(self.n_best or count)
        if (any(self.phrases) or self.terminology) and not strategy.places_phrases:
            raise NmtError(strategy.refusal_of_phrases)

    @property
    def is_plain(self) -> bool:
        """Whether the line may be split: no requirement is on the translation as a whole."""
        return not self.prefix and not any(self.phrases) and not self.terminology

    @property
    def sentences(self) -> tuple[str, ...]:
        """The line among those before and after it."""
        return (*self.context, self.text, *self.following)

    def encode(self, source: list[int], subwords: Subwords, language: str = "") -> Sentence:
        """Return the request in tokens.

        Args:
            source: tokens of the line, with EOS.
            subwords: subwords of the model.
            language: language of the line, which says where sentences begin.

        Raises:
            NmtError: a phrase to avoid must appear; or there is a prefix, and the model writes from
                right to left.
        """
        if self.prefix:
            refuse_beginnings(subwords.target_order)
        required = self.required(language)
        texts = [self.prefix, *required, *self.avoid]
        _, tags = subwords.tags
        if not any(texts):
            return Sentence(source, tags, strategy=self.strategy)
        # All at once: a call of SentencePiece costs more than a phrase.
        phrases = subwords.encode_phrases(texts)
        # With casing, all of the translation is in capitals, too. And in a script without spaces, a
        # line begins with other pieces than a phrase within it.
        if self.text.isupper() or is_unspaced(self.prefix[:1]):
            phrases[0] = subwords.encode_target([self.prefix])[0][len(tags) :]
        forced, avoided = phrases[: 1 + len(required)], phrases[1 + len(required) :]
        avoided = list(filter(None, avoided))
        for text, phrase in zip(texts, forced, strict=False):
            if any(_contains(phrase, other) for other in avoided):
                raise NmtError(f"{text!r} must appear, but contains a phrase to avoid")
        prefix, *phrases = forced
        phrases = list(filter(None, phrases))
        return Sentence(source, [*tags, *prefix], phrases, avoided, self.strategy)

    def required(self, language: str = "") -> list[str]:
        """Return the phrases and the translations of terms in the line.

        Args:
            language: language of the line, which says where sentences begin.
        """
        if not self.terminology:
            return [*self.phrases]
        return [*self.phrases, *Terms(self.terminology).required(self.text, language)]


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """The output for each line; see :meth:`nmt.inference.LineTranslator.translations`."""

    count: int = 1
    """Number of distinct translations per line, unless its request has another."""
    scored: bool = False
    """Whether to compute the log-probability of each token."""
    aligned: Unit | None = None
    """Unit to align with the source; None for no alignments."""
    retry: bool = False
    """Whether to search flagged lines again."""


@dataclass(frozen=True)
class Sentence:
    """A request in tokens."""

    source: list[int]
    """Source tokens, with EOS."""

    prefix: Sequence[int] = ()
    """First tokens of the target."""

    phrases: Sequence[Sequence[int]] = ()
    """Phrases that the target must contain."""

    avoided: Sequence[Sequence[int]] = ()
    """Phrases that the target must not contain."""

    strategy: Strategy | None = None
    """Search strategy; None for the translator's."""

    @property
    def key(self) -> Hashable:
        """Equal for equal sentences, which have the same hypotheses."""
        if not (self.prefix or self.phrases or self.avoided):  # most are, and this is much faster
            return tuple(self.source), self.strategy
        wishes = (tuple(map(tuple, lists)) for lists in (self.phrases, self.avoided))
        return tuple(self.source), tuple(self.prefix), *wishes, self.strategy


@contextmanager
def naming_line(line: str) -> Iterator[None]:
    """Add a line to the message of an NmtError."""
    try:
        yield
    except NmtError as error:
        shown = line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 3]}..."
        raise NmtError(f"{error} (line {shown!r})") from None


def _refuse_numbers(value: object, where: str) -> None:
    """Refuse a number where text is expected, alone or in a list or an object."""
    inner = [*value.values()] if isinstance(value, Mapping) else value
    for text in inner if isinstance(inner, (list, tuple)) else [inner]:
        if isinstance(text, (int, float)):
            raise NmtError(f"{where}: expected text, not {text!r}; put it in quotes")


def _contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    """Whether the tokens of a phrase follow one another among the tokens."""
    size = len(phrase)
    return any(tokens[at : at + size] == phrase for at in range(len(tokens) - size + 1))


@dataclass
class Counts:
    """Numbers of lines and tokens that a translator has translated so far."""

    target_tokens: int = 0
    """Tokens of the translations, including EOS."""
    truncated: int = 0
    """Sources cut."""
    split: int = 0
    """Lines split."""
    empty: int = 0
    """Lines that are not blank but have a blank translation."""
    unsplittable: int = 0
    """Sources cut that are never split, because their requests ask for more than a translation."""
    beyond_training: int = 0
    """Sources much longer than in training, or of more sentences, that could have been split."""
    flagged: int = 0
    """Lines whose translation has a flag."""


@dataclass(frozen=True)
class Translation:
    """One translation of a line."""

    source: str
    """The line."""

    text: str
    """Detokenised, without a line feed."""

    hypothesis: Hypothesis
    """Hypothesis of the search; of a line that was split, with the EOS of each part."""

    token_log_probabilities: Sequence[float] = ()
    """Log-probability of each token and, if the hypothesis is finished, of the EOS; empty if not
    requested."""

    links: Links = ()
    """Aligned units, as offsets in source and text."""

    piece_starts: tuple[Sequence[int], Sequence[int]] | None = None
    """Offsets of the pieces of source and text if pieces are aligned; None if words are."""

    part_starts: tuple[tuple[int, int], ...] = ((0, 0),)
    """Offsets in source and text at which each part of a line that was split begins; the white
    space between two parts belongs to the second one."""

    flags: tuple[Flag, ...] = ()
    """Signs that the translation went wrong."""

    confidence: float | None = None
    """Probability that the translation is good, as :class:`nmt.runs.confidence.Confidence` defines;
    None if it was not scored, or the run is not calibrated."""

    @property
    def rank(self) -> tuple[int, float]:
        """Key that sorts translations of a line: by flags, then by log-probability per token."""
        hypothesis = self.hypothesis
        return len(self.flags), -hypothesis.log_probability / max(1, len(hypothesis.output))

    def units(self) -> tuple[list[str], list[str]]:
        """Return the words, or pieces, of the source and of the text, which `alignment` numbers."""
        if self.piece_starts is None:
            return words(self.source), words(self.text)
        source, target = self.piece_starts
        return _cut(self.source, source), _cut(self.text, target)

    def parts(self) -> list[tuple[str, str]]:
        """Return the source and the text of each part; without splitting, the line is the part."""
        sources, texts = zip(*self.part_starts, strict=True)
        return list(zip(_cut(self.source, sources), _cut(self.text, texts), strict=True))

    def alignment(self) -> list[tuple[int, int]]:
        """Return pairs of a source unit and a text unit that are aligned, numbered from 0."""
        starts = self.piece_starts or (word_starts(self.source), word_starts(self.text))
        return numbered(self.links, starts)

    def followed_by(self, other: Translation, space: str) -> Translation:
        """Join the translations of two consecutive parts of a line; each part keeps its EOS.

        Args:
            other: translation of the second part.
            space: white space between the two texts.
        """
        one, two = self.hypothesis, other.hypothesis
        finished = one.finished and two.finished
        before = self.text + space
        piece_starts = None
        if self.piece_starts or other.piece_starts:
            sides = zip(self.piece_starts or ((), ()), other.piece_starts or ((), ()), strict=True)
            (source, source_more), (text, text_more) = sides
            piece_starts = (
                [*source, *(len(self.source) + at for at in source_more)],
                [*text, *(len(before) + at for at in text_more)],
            )
        return Translation(
            self.source + other.source,
            before + other.text,
            Hypothesis(
                # Each part was searched by itself, so its EOS belongs to the probability.
                one.output + (two.tokens if finished else two.output),
                one.log_probability + two.log_probability,
                one.score + two.score,
                finished,
            ),
            [*self.token_log_probabilities, *other.token_log_probabilities],
            (
                *self.links,
                *((len(self.source) + at, len(before) + to) for at, to in other.links),
            ),
            piece_starts,
            (
                *self.part_starts,
                *((len(self.source) + at, len(self.text) + to) for at, to in other.part_starts),
            ),
            tuple(dict.fromkeys((*self.flags, *other.flags))),
        )


def _cut(text: str, starts: Sequence[int]) -> list[str]:
    """Cut a text at the given offsets; the last part extends to the end."""
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

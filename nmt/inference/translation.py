"""What goes into a translator, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from nmt.inference.alignment import Links, numbered, word_starts
from nmt.search import Hypothesis


@dataclass(frozen=True)
class Request:
    """A line to translate, and what its translation must have."""

    text: str
    """Without a line feed."""

    prefix: str = ""
    """What the translation begins with; its last word may go on, as "trans" to "translation"."""

    phrases: tuple[str, ...] = ()
    """What must appear in the translation, each as whole words' pieces, in any order."""

    @property
    def is_plain(self) -> bool:
        """Whether any translation will do."""
        return not self.prefix and not any(self.phrases)


@dataclass(frozen=True)
class Sentence:
    """A request in tokens."""

    source: list[int]
    """With EOS."""

    prefix: list[int]
    """What the target begins with."""

    phrases: list[list[int]]
    """Runs that the target is to hold."""

    @property
    def forced(self) -> list[int]:
        """The tokens of the prefix and of all phrases."""
        return [*self.prefix, *chain.from_iterable(self.phrases)]

    @property
    def least_length(self) -> int:
        """The room that prefix, phrases and EOS need."""
        return len(self.forced) + 1


@dataclass(frozen=True)
class Translation:
    """One translation of a line."""

    source: str
    """The line."""

    text: str
    """Detokenised, without a line feed."""

    hypothesis: Hypothesis
    """What the search found."""

    token_log_probabilities: Sequence[float] = ()
    """Of each token and, where it was finished, the EOS; empty where they were not asked for."""

    links: Links = ()
    """Where units of the source and of the text begin that belong together."""

    piece_starts: tuple[Sequence[int], Sequence[int]] | None = None
    """Where the pieces of the source and of the text begin, if they are the units; else None, and
    the units are words."""

    def units(self) -> tuple[list[str], list[str]]:
        """Return the words, or pieces, of the source and of the text, which `alignment` numbers."""
        if self.piece_starts is None:
            return self.source.split(), self.text.split()
        source, target = self.piece_starts
        return _cut(self.source, source), _cut(self.text, target)

    def alignment(self) -> list[tuple[int, int]]:
        """Which unit of the source each unit of the text belongs to: pairs of both, from 0."""
        starts = self.piece_starts or (word_starts(self.source), word_starts(self.text))
        return numbered(self.links, starts)

    def followed_by(self, other: Translation, space: str) -> Translation:
        """The translation of two parts of a line."""
        one, two = self.hypothesis, other.hypothesis
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
                one.tokens + two.tokens,
                one.log_probability + two.log_probability,
                one.score + two.score,
                one.finished and two.finished,
            ),
            [*self.token_log_probabilities, *other.token_log_probabilities],
            (
                *self.links,
                *((len(self.source) + at, len(before) + to) for at, to in other.links),
            ),
            piece_starts,
        )


def _cut(text: str, starts: Sequence[int]) -> list[str]:
    """The text between each start and the next, the last to its end."""
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

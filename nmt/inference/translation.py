"""Translations of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.inference.alignment import Links, numbered, word_starts
from nmt.search import Hypothesis


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

    def units(self) -> tuple[list[str], list[str]]:
        """Return the words, or pieces, of the source and of the text, which `alignment` numbers."""
        if self.piece_starts is None:
            return self.source.split(), self.text.split()
        source, target = self.piece_starts
        return _cut(self.source, source), _cut(self.text, target)

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
        )


def _cut(text: str, starts: Sequence[int]) -> list[str]:
    """Cut a text at the given offsets; the last part extends to the end."""
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

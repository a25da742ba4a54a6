"""Inline casing: lower-case words after marks, so that `Man` and `MAN` have the pieces of `man`.

A mark is a token that no text spells, like a tag. It stands before the first token of a word, or,
for a line in capitals, before the first token of the line. A word is in lower case only if its mark
restores it letter by letter; words such as `iPhone` stay as they are. A word with a user-defined
symbol in upper case, such as a placeholder, also stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from itertools import accumulate
from random import Random

from nmt.data.vocabulary import SPACE
from nmt.subwords.segmenters import Segmenter, SentencePiece, WrappedSegmenter

TITLE, UPPER, CAPITALS = "<case:title>", "<case:upper>", "<case:capitals>"
"""The first letter of the next word, all letters of it, and all letters from here on, are upper."""

MARKS = (TITLE, UPPER, CAPITALS)

_WORD = re.compile(f"[^ {SPACE}]+")
"""A word of text that SentencePiece has normalised, which only spaces divide."""


def in_lower_case(
    line: str, is_whole: bool = True, symbols: re.Pattern[str] | None = None
) -> tuple[str, dict[int, str]]:
    """Return the line in lower case, and the mark of each marked word by the word's number.

    Args:
        line: text, normalised by the subword model.
        is_whole: False for a phrase of a line, in which each word has its own mark.
        symbols: matches symbols that stay as they are, together with the word around them.
    """
    words = _WORD.findall(line)
    low = _lower(line)
    kept = [symbols is not None and symbols.search(word) is not None for word in words]
    # A single word in capitals gets the mark of a word, which costs as much.
    is_upper = low.upper() == line != low and len(words) > 1 and not any(kept)
    # One mark for a line in capitals, which is as common as headlines.
    if is_whole and is_upper:
        return low, {0: CAPITALS}
    marked = ((at, _mark(word)) for at, word in enumerate(words) if not kept[at])
    marks = {at: mark for at, mark in marked if mark}
    numbers = iter(range(len(words)))
    return _WORD.sub(lambda m: _lower(m[0]) if next(numbers) in marks else m[0], line), marks


def in_upper_case(symbols: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of the symbols that have upper case; None if there are none."""
    cased = [re.escape(symbol) for symbol in symbols if symbol != _lower(symbol)]
    return re.compile("|".join(cased)) if cased else None


def _lower(text: str) -> str:
    """Return the text in lower case, of the same length: characters that would change it stay."""
    # U+0130 becomes two characters in lower case, which would move all offsets after it.
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)


def _mark(word: str) -> str | None:
    """Return the mark that restores a word from its lower case; None if there is none."""
    low = _lower(word)
    if low == word:
        return None
    for mark in (TITLE, UPPER):
        letters = [*low]
        # Tried exactly as decoding does it: what a mark does not restore would be lost.
        _raise(letters, mark, 0)
        if "".join(letters) == word:
            return mark
    return None


def _raise(letters: list[str], mark: str, start: int, kept: Container[int] = ()) -> None:
    """Apply a mark to the letters from `start` on, in place, except the offsets in `kept`."""
    while start < len(letters) and letters[start] == " ":
        start += 1
    for at in range(start, len(letters)):
        if mark != CAPITALS and letters[at] == " ":
            return
        # Quotation marks and digits before the first letter do not use up the mark.
        has_case = letters[at].upper() != letters[at].lower()
        if at not in kept:
            letters[at] = letters[at].upper()
        if has_case and mark == TITLE:
            return


def cased(segmenter: SentencePiece, symbols: Iterable[str]) -> Segmenter:
    """Return the segmenter, with inline casing if its vocabulary has the marks.

    Args:
        segmenter: segments text.
        symbols: user-defined symbols of the segmenter.
    """
    has_marks = segmenter.tags.keys() >= {*MARKS}
    return CasedSegmenter(segmenter, symbols) if has_marks else segmenter


def is_cased(segmenter: Segmenter) -> bool:
    """Return whether a segmenter, or a segmenter that it wraps, has inline casing."""
    if isinstance(segmenter, CasedSegmenter):
        return True
    return isinstance(segmenter, WrappedSegmenter) and is_cased(segmenter.inner)


class CasedSegmenter(WrappedSegmenter):
    """A segmenter of text in lower case, with marks."""

    def __init__(self, inner: SentencePiece, symbols: Iterable[str] = ()) -> None:
        """Wrap a segmenter that has the marks among its tags, and user-defined symbols."""
        super().__init__(inner)
        self._normalized = inner.normalized
        self.symbols = in_upper_case(symbols)
        self._ids = {mark: inner.tags[mark] for mark in MARKS}
        self._marks = {token: mark for mark, token in self._ids.items()}
        pieces = enumerate(inner.pieces([*range(inner.size)]))
        self._begins_word = {token for token, piece in pieces if piece.startswith(SPACE)}

    @property
    def marks_word_begins(self) -> bool:
        """Whether a piece begins a word if and only if it begins with a space: marks do not."""
        return False

    @property
    def tags(self) -> dict[str, int]:
        """The tags of the vocabulary, without the marks."""
        return {piece: token for piece, token in self.inner.tags.items() if piece not in MARKS}

    def lowered(self, line: str, is_whole: bool = True) -> tuple[str, dict[int, str]]:
        """Return the normalised line as :func:`in_lower_case` does."""
        return in_lower_case(self._normalized(line)[0], is_whole, self.symbols)

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line."""
        return self._segmented(lines, num_threads)[1]

    def encode_phrases(self, phrases: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every phrase, without the mark of a line in capitals."""
        return self._segmented(phrases, num_threads, are_whole=False)[1]

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation."""
        text, marks = self.lowered(line)
        ids = self._marked(self.inner.sample(text, alpha, draw), text, marks)
        # Where lower case changes the words, the line keeps its case.
        return self.inner.sample(line, alpha, draw) if ids is None else ids

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence."""
        return ["".join(letters) for letters, _ in self._restored(ids, num_threads)]

    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its line; a mark is where the next piece begins."""
        texts, rows = self._segmented(lines, num_threads)
        offsets = self.inner.line_offsets(texts, num_threads)
        parts = zip(lines, rows, offsets, texts, strict=True)
        placed = []
        for line, row, places, text in parts:
            # Offsets lead from normalised text back to the line as it was given.
            begins = self._normalized(line)[1]
            placed.append([begins[place] for place in self._placed(row, places, len(text))])
        return placed

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text; a mark is where the next piece begins."""
        offsets = []
        for letters, places in self._restored(ids, num_threads):
            starts = [*accumulate(map(len, letters), initial=0)]
            offsets.append([starts[place] for place in places])
        return offsets

    def _segmented(
        self, lines: list[str], num_threads: int, are_whole: bool = True
    ) -> tuple[list[str], list[list[int]]]:
        """Return the text of each line that is segmented, and its ids with marks.

        A line keeps its case if lower case changes its number of words.
        """
        lowered = [self.lowered(line, are_whole) for line in lines]
        texts, marks = [text for text, _ in lowered], [marks for _, marks in lowered]
        encode = self.inner.encode if are_whole else self.inner.encode_phrases
        rows = encode(texts, num_threads)
        for at, row in enumerate(rows):
            marked = self._marked(row, texts[at], marks[at])
            if marked is None:
                texts[at] = self._normalized(lines[at])[0]
                [marked] = self.inner.encode([lines[at]])
            rows[at] = marked
        return texts, rows

    def _marked(self, row: list[int], text: str, marks: dict[int, str]) -> list[int] | None:
        """Return the ids of a text with marks before words; None if the text has other words."""
        begins = [at for at, token in enumerate(row) if token in self._begins_word]
        if not marks:
            return row
        # Marks would land on wrong words.
        if len(begins) != len(_WORD.findall(text)):
            return None
        at_token = {begins[word]: self._ids[mark] for word, mark in marks.items()}
        marked = []
        for at, token in enumerate(row):
            marked += [at_token[at], token] if at in at_token else [token]
        return marked

    def _restored(self, ids: list[list[int]], threads: int) -> list[tuple[list[str], list[int]]]:
        """Return for each sentence its text, by letters in lower case, and offsets among them."""
        plain = [[token for token in row if token not in self._marks] for row in ids]
        texts = self.inner.decode(plain, threads)
        offsets = self.inner.text_offsets(plain, threads)
        restored = []
        for row, text, places in zip(ids, texts, offsets, strict=True):
            letters, placed = [*text], self._placed(row, places, len(text))
            # A symbol keeps its case, also within a line in capitals.
            symbols = self.symbols.finditer(text) if self.symbols else ()
            kept = {at for symbol in symbols for at in range(*symbol.span())}
            for token, place in zip(row, placed, strict=True):
                if token in self._marks:
                    _raise(letters, self._marks[token], place, kept)
            restored.append((letters, placed))
        return restored

    def _placed(self, row: list[int], offsets: list[int], end: int) -> list[int]:
        """Return the offsets of all ids, given the offsets of the ids without marks."""
        # From the end, because a mark has the place of the piece after it.
        place, others = end, reversed(offsets)
        placed = []
        for token in reversed(row):
            place = place if token in self._marks else next(others)
            placed.append(place)
        return placed[::-1]

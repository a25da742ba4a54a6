"""Terms in a line, and the translations that they require."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from unicodedata import category

from nmt.inference.splitting import split_sentences
from nmt.languages import is_unspaced
from nmt.subwords.words import as_read


class Terms:
    """Translations of terms, to look up in many lines."""

    def __init__(self, translations: Mapping[str, str]) -> None:
        """Index the terms by their first character.

        Args:
            translations: translation by term; empty or equal for a term that stays as it is.
        """
        self._translations = {
            as_read(term): text if text != term else "" for term, text in translations.items()
        }
        self._translations.pop("", None)
        self._lengths: dict[str, list[int]] = {}
        for length, first in sorted({(len(term), term[0]) for term in self._translations}):
            self._lengths.setdefault(first, []).append(length)

    def required(self, line: str, language: str = "") -> list[str]:
        """Return the translation of each term in a line, in the order of the line, without repeats.

        Of terms that overlap, the first one counts; of terms that begin at the same place, the
        longest one. A term has whole words, except in scripts without spaces. At the beginning of
        a sentence its first letter may be a capital.

        Args:
            line: the line.
            language: language of the line, which says where sentences begin.
        """
        text, at = as_read(line), 0
        required: dict[str, None] = {}
        while at < len(text):
            if (end := self._end(text, at, language)) is not None:
                term = text[at:end]
                key = term if term in self._translations else term[0].lower() + term[1:]
                required[self._translations[key] or term] = None
            at = end or at + 1
        return [*required]

    def _end(self, text: str, at: int, language: str) -> int | None:
        """Return the offset after the longest term that begins at an offset; None without one."""
        first = text[at]
        lengths = {(length, first) for length in self._lengths.get(first, ())}
        if first.isupper():
            lower = first.lower()
            lengths |= {(length, lower) for length in self._lengths.get(lower, ())}
        if not lengths or not _is_boundary(text, at):
            return None
        for length, begin in sorted(lengths, reverse=True):
            end = at + length
            if (
                end <= len(text)
                and begin + text[at + 1 : end] in self._translations
                and _is_boundary(text, end)
                and (begin == first or _begins_sentence(text, at, language))
            ):
                return end
        return None


def _is_boundary(text: str, at: int) -> bool:
    """Return whether a term may begin or end at an offset."""
    before, after = text[at - 1 : at], text[at : at + 1]
    if not before or not after:
        return True
    # A combining mark belongs to the letter before it, so it makes another word.
    if category(after).startswith("M"):
        return False
    are_letters = all(
        side.isalnum() or side == "_" or category(side).startswith("M") for side in (before, after)
    )
    return not are_letters or is_unspaced(before) or is_unspaced(after)


def _begins_sentence(text: str, at: int, language: str) -> bool:
    """Return whether no word of its sentence precedes an offset."""
    starts = accumulate(map(len, split_sentences(text, language)), initial=0)
    return any(start <= at and not re.search(r"\w", text[start:at]) for start in starts)

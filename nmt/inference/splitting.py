"""Divide a line into sentences, and into parts that fit a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from unicodedata import category

from nmt.data.directions import Direction
from nmt.languages import has_spaces, has_spaces_between_sentences

_ISO_639_3 = (
    "amh:am ara:ar arb:ar ben:bn bul:bg cat:ca dan:da deu:de ell:el eng:en fin:fi fra:fr guj:gu "
    "hin:hi hye:hy ita:it jpn:ja kan:kn kaz:kk mal:ml mar:mr mya:my nld:nl pan:pa pol:pl por:pt "
    "rus:ru slk:sk spa:es tam:ta tel:te ukr:uk"
)

SENTENCEX = dict(pair.split(":") for pair in _ISO_639_3.split())
"""Codes of sentencex, by codes of ISO 639-3, for the languages with rules of their own."""

_ABBREVIATED = re.compile(r"(?:^|\W)[^\W\d_]{1,6}\.$")

_INITIAL = re.compile(r"(?:^|[\s«„“\"'’(-])([^\W\d_])\.$")

_FULL_STOPS = ".!?"

_TAIL = 9
"""Characters before an end that tell whether a sentence ends: an abbreviation, a letter."""


def split_sentences(line: str, language: str) -> list[str]:
    """Divide a line into its sentences, each with the white space before it.

    The package sentencex proposes the ends. Some of its ends are no boundaries: before a small
    letter, between a short abbreviation and a number, after an initial, within a word, or where a
    side has no letters. So a quotation stays with "she said".

    Args:
        line: the line.
        language: language of the line; an unknown one is divided like English.
    """
    from sentencex import segment  # here, because most commands divide no line

    code, *_ = re.split("[-_]", language.lower())
    # sentencex panics at some white space that is not ASCII; only the lengths of pieces are used.
    pieces = segment(SENTENCEX.get(code, code), re.sub(r"\s", " ", line))
    has_capitals, spaced = any(map(str.isupper, line)), has_spaces(language)
    starts, end, has_letters = [0], 0, False
    for piece, following in pairwise(pieces):
        end += len(piece)
        has_letters = has_letters or _has_letters(piece)
        cut = end - len(piece) + len(piece.rstrip())  # white space begins the next sentence
        tail = line[max(starts[-1], cut - _TAIL) : cut]
        is_within_word = spaced and tail[-1:] in _FULL_STOPS and not line[cut].isspace()
        if (
            has_letters
            and _has_letters(following)
            and not is_within_word
            and not _continues_sentence(tail, following, has_capitals)
        ):
            starts.append(cut)
            has_letters = False
    return [line[start:end] for start, end in pairwise([*starts, len(line)])]


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _continues_sentence(tail: str, following: str, has_capitals: bool) -> bool:
    """Return whether text belongs to the sentence before it.

    Args:
        tail: the last characters of the sentence.
        following: the text.
        has_capitals: whether the line has capitals, so that a small letter begins no sentence.
    """
    first = next(filter(str.isalnum, following))
    if first.isdigit():
        return bool(_ABBREVIATED.search(tail))
    initial = _INITIAL.search(tail)
    return (
        (has_capitals and first.islower())
        or (initial is not None and not initial[1].islower() and initial[1] != "I")
        or (tail[-1] in "」』" and following.startswith("と"))  # "..." と言った
    )


_CLOSING = r"(?:\s?[»›]|[\"'”’“‘«‹)\]])*(?=\s)"

_CLOSING_CJK = "[」』”’）]*"

BOUNDARIES = (
    re.compile(rf"[.!?…]{_CLOSING}|[。！？]{_CLOSING_CJK}"),  # sentences
    re.compile(rf"[,;:–—]{_CLOSING}|[，；：、]{_CLOSING_CJK}"),  # clauses
    re.compile(r"\S(?=\s)"),  # words
)
"""Patterns of the text before a boundary, the best kind first: the end of a sentence with its
closing quotes and brackets, of a clause, or of a word. A line is always split before white
space."""

JOINER = "\u200d"

SKIN_TONES = tuple(map(chr, range(0x1F3FB, 0x1F400)))


def parts(line: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a line into consecutive parts that fit, or that have only one character.

    A part that does not fit is split in two at the best kind of boundary in the part, at the
    boundary nearest to the middle; without a boundary, at the character nearest to it.
    """
    done: list[str] = []
    waiting = [line]
    while waiting:
        part = waiting.pop()
        if len(part) < 2 or fits(part):
            done.append(part)
        else:
            at = _boundary(part)
            # The first half is on top of the stack, so parts come out in order.
            waiting += [part[at:], part[:at]]
    return done


def space_before(part: str, languages: Direction) -> str:
    """Return the white space between the translations of a part and of the part before it.

    Args:
        part: second or later part of a line, with the white space before it.
        languages: source and target language.
    """
    source, target = languages
    if not has_spaces_between_sentences(target):
        return ""
    # A source without spaces has none to keep.
    return part[: len(part) - len(part.lstrip())] if has_spaces(source) else " "


def _boundary(text: str) -> int:
    """Return the offset of the split; both sides have characters other than white space."""
    last, middle = len(text.rstrip()), len(text) // 2
    for boundary in BOUNDARIES:
        ends = (match.end() for match in boundary.finditer(text))
        splits = [end for end in ends if end < last]
        if splits:
            # Near the middle, so that halves of halves stay alike in length.
            return min(splits, key=lambda split: abs(split - middle))
    starts = [at for at in range(1, len(text)) if not _continues(text, at)]
    return min(starts or [middle], key=lambda start: abs(start - middle))


def _continues(text: str, at: int) -> bool:
    """Return whether a character belongs to the one before: a mark, a skin tone, or joined."""
    is_mark = category(text[at]).startswith("M") or text[at] in SKIN_TONES
    return is_mark or JOINER in text[at - 1 : at + 1]

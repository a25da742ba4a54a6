"""Split a line that is too long for a model at the best boundaries, and join the translations."""

from __future__ import annotations

import re
from collections.abc import Callable
from unicodedata import category

from nmt.data.directions import Direction
from nmt.languages import has_spaces, has_spaces_between_sentences

_CLOSING = r"(?:\s?[»›]|[\"'”’“‘«‹)\]])*(?=\s)"
_CLOSING_CJK = "[」』”’）]*"

BOUNDARIES = (
    re.compile(rf"[.!?…]{_CLOSING}|[。！？]{_CLOSING_CJK}"),  # sentences
    re.compile(rf"[,;:–—]{_CLOSING}|[，；：、]{_CLOSING_CJK}"),  # clauses
    re.compile(r"\S(?=\s)"),  # words
)
"""What ends before a boundary, the best kind first: the end of a sentence, with the quotes and
brackets that it closes, of a clause, or of a word. A line is always split before white space."""

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
            waiting += [part[at:], part[:at]]
    return done


def space_before(part: str, languages: Direction) -> str:
    """Return the white space between the translation of a part and that of the part before.

    Args:
        part: second or later part of a line, with the white space before it.
        languages: source and target language.
    """
    source, target = languages
    if not has_spaces_between_sentences(target):
        return ""
    return part[: len(part) - len(part.lstrip())] if has_spaces(source) else " "


def _boundary(text: str) -> int:
    """Return the offset of the split; both sides have characters other than white space."""
    last, middle = len(text.rstrip()), len(text) // 2
    for boundary in BOUNDARIES:
        ends = (match.end() for match in boundary.finditer(text))
        splits = [end for end in ends if end < last]
        if splits:
            return min(splits, key=lambda split: abs(split - middle))
    starts = [at for at in range(1, len(text)) if not _continues(text, at)]
    return min(starts or [middle], key=lambda start: abs(start - middle))


def _continues(text: str, at: int) -> bool:
    """Return whether a character belongs to the one before: a mark, a skin tone, or joined."""
    is_mark = category(text[at]).startswith("M") or text[at] in SKIN_TONES
    return is_mark or JOINER in text[at - 1 : at + 1]

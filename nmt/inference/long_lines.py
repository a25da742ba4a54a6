"""Split a line that is too long for a model at the best boundaries, and join the translations."""

from __future__ import annotations

import re
from collections.abc import Callable

from nmt.data.directions import Direction
from nmt.languages import has_spaces, has_spaces_between_sentences

BOUNDARIES = (
    re.compile(r"(?<=[.!?…])(?=\s)|(?<=[。！？])"),  # after sentences
    re.compile(r"(?<=[,;:–—])(?=\s)|(?<=[，；：、])"),  # after clauses
    re.compile(r"(?<=\S)(?=\s)"),  # after words
)
"""Kinds of boundaries, the best first; a line is always split before white space."""


def parts(line: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a line into consecutive parts that fit, or that have only one character.

    A part that does not fit is split in two at the best kind of boundary in the part, at the
    boundary nearest to the middle; without a boundary, in the middle.
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
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    middle = len(text) // 2
    for boundary in BOUNDARIES:
        starts = (match.start() for match in boundary.finditer(text))
        splits = [start for start in starts if first < start < last]
        if splits:
            return min(splits, key=lambda split: abs(split - middle))
    return min(max(middle, 1), len(text) - 1)

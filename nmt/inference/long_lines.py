"""Splitting a line that is too long for a model where it hurts least."""

from __future__ import annotations

import re
from collections.abc import Callable

BOUNDARIES = (
    re.compile(r"(?<=[.!?…])(?=\s)|(?<=[。！？])"),  # after sentences
    re.compile(r"(?<=[,;:–—])(?=\s)|(?<=[，；：、])"),  # after clauses
    re.compile(r"(?<=\S)(?=\s)"),  # after words
)
"""Where a line may be split, the best places first: always before white space."""


def parts(line: str, fits: Callable[[str], bool]) -> list[str]:
    """The line in consecutive parts that all fit, or have no more than one character.

    A part that does not fit is split in two at the best kind of boundary that it has, at the one
    nearest to its middle; without any, in the middle.
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


def _boundary(text: str) -> int:
    """Where to split, so that both sides have characters other than white space."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    middle = len(text) // 2
    for boundary in BOUNDARIES:
        places = [it.start() for it in boundary.finditer(text) if first < it.start() < last]
        if places:
            return min(places, key=lambda place: abs(place - middle))
    return min(max(middle, 1), len(text) - 1)

"""Cleaning step: pairs whose sides have different numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from nmt.preprocess.cleaning_steps import Filtering, steps

MAX_DIGITS = 1000
"""Last digits of a number that are compared; Python refuses to convert some thousands."""

_DIGIT = re.compile(r"\d")

_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?:[.,'’ \u00a0\u2009\u202f]\d{3})+(?!\d)|\d+")
"""Three-digit groups behind one separator each are one number; so is any other run of digits."""

_NOT_DIGITS = re.compile(r"\D")


@steps.register("numbers")
@dataclass(frozen=True, kw_only=True)
class Numbers(Filtering):
    """Drops pairs whose sides have different numbers, in any order.

    Separators of thousands do not count (1,000 and 1.000 and 1000 are equal), nor do leading zeros,
    nor in which script the digits are. A separator of decimals ends a number, so 1.5 and 1,5 are
    both the numbers 1 and 5; 12/31/2020 and 31.12.2020 are the same three numbers.
    """

    max_word: int = 12
    """Numbers up to this one may be missing on one side, where they may be words ("two")."""

    def __post_init__(self) -> None:
        if self.max_word < 0:
            raise ValueError(f"max_word must be at least 0, not {self.max_word}")

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether the sides have the same numbers."""
        return [self._agree(one, other) for one, other in zip(source, target, strict=True)]

    def _agree(self, source: str, target: str) -> bool:
        if not (_DIGIT.search(source) or _DIGIT.search(target)):
            return True
        numbers, others = _numbers(source), _numbers(target)
        missing, added = numbers - others, others - numbers
        if missing and added:
            return False
        return all(number <= self.max_word for number in (missing or added))


def _numbers(line: str) -> Counter[int]:
    """Return the numbers of a line, and how often each occurs."""
    digits = (_NOT_DIGITS.sub("", text)[-MAX_DIGITS:] for text in _NUMBER.findall(line))
    return Counter(map(int, digits))

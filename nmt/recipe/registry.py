"""Names that a recipe may choose.

A registered name is a *frozen dataclass instance*: a full set of values, whose fields are the
recipe's keys. ``transformer_base`` and ``transformer_big`` are two entries of one class; a recipe
picks an entry and overrides single fields of it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from nmt.errors import NmtError

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """The entries of one kind, by name."""

    def __init__(self, kind: str, key: str = "name", flag: str | None = None) -> None:
        """Makes an empty registry.

        Args:
            kind: what its entries are called in messages, such as "search strategy".
            key: the field that holds an entry's name, and the recipe's key that chooses one.
            flag: the option of the command line that chooses one, if there is one.
        """
        self.kind = kind
        self.key = key
        self.flag = flag
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: C) -> C:
        """The entry, with its name filled in, now known by that name; a taken name raises."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        named = dataclasses.replace(cast(Any, entry), **{self.key: name})
        self._entries[name] = cast(T, named)
        return cast(C, named)

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """A class decorator: registers the dataclass with its default values."""

        def decorate(entry: type[C]) -> type[C]:
            self.add(name, entry())
            return entry

        return decorate

    def __getitem__(self, name: str) -> T:
        """The entry of that name; an unknown one is an :class:`NmtError` with the nearest name."""
        try:
            return self._entries[name]
        except KeyError:
            raise NmtError(unknown(self.kind, name, self)) from None

    def names_with(self, field: str) -> list[str]:
        """Return the names of the entries that have a field."""
        return [name for name in self if field in getattr(self[name], "__dataclass_fields__", ())]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about a name that does not exist: the one that was meant, or all names."""
    names = sorted(known)
    near = nearest(name, names)
    remedy = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return f"unknown {kind} {name!r}; {remedy}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was meant, or None: no guess is better than a wrong one.

    A slip of the keys comes first. Else all words of the known name are in the unknown one, as
    those of ``transformer_big`` in ``transformer_wmt_en_de_big``, or the other way round, or all
    words but the last are the same. Of several such names the one with most words in common is
    meant, and none where two have as many.
    """
    names = sorted(known)
    slips = {other: _edits(name, other) for other in names}
    fewest = min(slips.values(), default=math.inf)
    if fewest < math.inf:
        return next(other for other in names if slips[other] == fewest)
    ranked = sorted(((_shared_words(name, other), other) for other in names), reverse=True)
    if not ranked or not ranked[0][0][0]:
        return None
    (best, found), *others = ranked
    return None if others and others[0][0] == best else found


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W\d_]+|\d+|\++", name.lower())


def _edits(name: str, other: str) -> float:
    """Return how many slips of the keys make a name of another; infinity where it is no slip.

    A slip is a letter too many, too few or wrong, or two that are exchanged. The first letter and
    all digits are right: ``fp16`` is no slip of ``bf16``, nor ``int4`` of ``int8``.
    """
    one, two = ("".join(re.findall(r"[^\W_]|\+", text.lower())) for text in (name, other))
    if one[:1] != two[:1] or re.findall(r"\d", one) != re.findall(r"\d", two):
        return math.inf
    before: list[int] = []
    last = list(range(len(two) + 1))
    for at, letter in enumerate(one):
        row = [at + 1]
        for to, wanted in enumerate(two):
            row.append(min(last[to + 1] + 1, row[to] + 1, last[to] + (letter != wanted)))
            if at and to and (letter, wanted) == (two[to - 1], one[at - 1]):
                row[-1] = min(row[-1], before[to - 1] + 1)
        before, last = last, row
    is_swap = len(one) == len(two) and sorted(one) == sorted(two)
    allowed = max(len(one) // 7, 1 if max(len(one), len(two)) > 3 or is_swap else 0)
    return last[-1] if last[-1] <= allowed else math.inf


def _shared_words(name: str, other: str) -> tuple[int, int]:
    """Return how many words two names share, and minus how many they do not; zeros for no match."""
    one, two = _words(name), _words(other)
    in_both = [word for word in two if any(_is_same_word(its, word) for its in one)]
    back = [its for its in one if any(_is_same_word(its, word) for word in two)]
    is_within = len(in_both) == len(two) or len(back) == len(one)
    is_but_the_last = len(one) == len(two) > 2 and one[:-1] == two[:-1]
    if not (is_within or is_but_the_last) or max(map(len, in_both), default=0) < 3:
        return 0, 0
    return len(in_both), len(in_both) + len(back) - len(one) - len(two)


def _is_same_word(word: str, known: str) -> bool:
    """Whether a word is a known one, its beginning, one inflected, or one with something before."""
    if word == known or (len(word) > 3 and known.startswith(word)):
        return True
    is_inflected = word.removeprefix(known) in ("s", "es", "d", "ed", "er", "ing")
    return len(known) > 3 and (is_inflected or word.endswith(known))

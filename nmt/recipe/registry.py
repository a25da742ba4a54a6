"""Registries: the names that a recipe can choose.

A registered name is a *frozen dataclass instance*: a full set of values, whose fields are the
recipe's keys. ``transformer_base`` and ``transformer_big`` are two entries of one class; a recipe
picks an entry and overrides single fields of it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import get_annotations
from typing import Any, Generic, TypeVar, cast

from nmt.errors import NmtError

Entry = TypeVar("Entry")
EntryClass = TypeVar("EntryClass")


class Registry(Generic[Entry]):
    """The entries of one kind, by name."""

    def __init__(self, kind: str, key: str = "name", flag: str | None = None) -> None:
        """Make an empty registry.

        Args:
            kind: the word for an entry in messages, such as "search strategy".
            key: the field that holds an entry's name, and the recipe's key that chooses an entry.
            flag: the command-line option that chooses an entry, or None.
        """
        self.kind = kind
        self.key = key
        self.flag = flag
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: EntryClass) -> EntryClass:
        """Register an entry under a name, and return the entry with its name filled in.

        Raises:
            ValueError: the name is already registered.
            TypeError: the entry's class declares fields, but is not made a dataclass.
        """
        if name in self._entries:
            raise ValueError(f"a {self.kind} {name!r} already exists: choose another name")
        kind = type(entry)
        # In the class itself, because a subclass inherits the fields of its parent.
        if "__dataclass_fields__" not in vars(kind) and (lost := _declared(kind)):
            raise TypeError(
                f"{kind.__name__} is not a dataclass, so {', '.join(lost)} would not be keys of a "
                "recipe: put @dataclass(frozen=True, kw_only=True) before the class"
            )
        # A copy, because a frozen entry cannot be named in place.
        named = dataclasses.replace(cast(Any, entry), **{self.key: name})
        self._entries[name] = cast(Entry, named)
        return cast(EntryClass, named)

    def register(self, name: str) -> Callable[[type[EntryClass]], type[EntryClass]]:
        """Return a class decorator that registers the dataclass with its default values."""

        def decorate(entry: type[EntryClass]) -> type[EntryClass]:
            self.add(name, entry())
            return entry

        return decorate

    def __getitem__(self, name: str) -> Entry:
        """Return the entry of a name.

        Raises:
            NmtError: the name is unknown; the message suggests the nearest name.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise NmtError(unknown(self.kind, name, self)) from None

    def names_with(self, field: str) -> list[str]:
        """Return the names of the entries that have a field."""
        return [name for name in self if field in getattr(self[name], "__dataclass_fields__", ())]

    def __iter__(self) -> Iterator[str]:
        # Sorted, so that messages do not depend on the order of imports.
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def _declared(kind: type) -> list[str]:
    """Return the names of the fields that a class declares."""
    with suppress(NameError):  # for a type that is imported only for type checkers
        return [name for name, of in get_annotations(kind).items() if "ClassVar" not in str(of)]
    return []


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a message for an unknown name that suggests known names.

    The suggestions are the name that was probably meant, or the known names that begin with the
    unknown name, or all known names.
    """
    names = sorted(known)
    if near := nearest(name, names):
        return f"unknown {kind} {name!r}; did you mean {near!r}?"
    longer = [other for other in names if name and other.startswith(name)]
    remedy = (
        f"names that begin like this: {', '.join(longer)}"
        if longer
        else f"known: {', '.join(names)}"
    )
    return f"unknown {kind} {name!r}; {remedy}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, or None if there is no good guess.

    First, look for a typo of a known name. Otherwise, look for known names whose words are all in
    `name`, such as ``transformer_big`` in ``transformer_wmt_en_de_big``, or which contain all words
    of `name`, or which differ in the last word only. Among these, return the name with the most
    words in common, or None if two names tie.
    """
    names = sorted(known)
    edits = {other: _edits(name, other) for other in names}
    fewest = min(edits.values(), default=math.inf)
    if fewest < math.inf:
        return next(other for other in names if edits[other] == fewest)
    ranked = sorted(((_shared_words(name, other), other) for other in names), reverse=True)
    if not ranked or not ranked[0][0][0]:
        return None
    (best_rank, best), *others = ranked
    return None if others and others[0][0] == best_rank else best


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W\d_]+|\d+|\++", name.lower())


def _edits(name: str, other: str) -> float:
    """Return the number of typos between two names, or infinity if there are too many.

    A typo is an extra, missing or wrong letter, or two exchanged letters. The first letter and all
    digits must agree: ``fp16`` is not a typo of ``bf16``, nor ``int4`` of ``int8``.
    """
    a, b = ("".join(re.findall(r"[^\W_]|\+", text.lower())) for text in (name, other))
    if a[:1] != b[:1] or re.findall(r"\d", a) != re.findall(r"\d", b):
        return math.inf
    # Rows of the table of distances between the beginnings of both names (Damerau-Levenshtein).
    two_rows_up: list[int] = []
    row_up = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        row = [i + 1]
        for j, other_letter in enumerate(b):
            row.append(min(row_up[j + 1] + 1, row[j] + 1, row_up[j] + (letter != other_letter)))
            if i and j and (letter, other_letter) == (b[j - 1], a[i - 1]):
                row[-1] = min(row[-1], two_rows_up[j - 1] + 1)
        two_rows_up, row_up = row_up, row
    distance = row_up[-1]
    is_swap = len(a) == len(b) and sorted(a) == sorted(b)
    allowed = max(len(a) // 7, 1 if max(len(a), len(b)) > 3 or is_swap else 0)
    return distance if distance <= allowed else math.inf


def _shared_words(name: str, other: str) -> tuple[int, int]:
    """Return the number of shared words, and minus the number of other words, or (0, 0)."""
    words, known = _words(name), _words(other)
    shared = [word for word in words if any(_is_same_word(word, one) for one in known)]
    shared_known = [one for one in known if any(_is_same_word(word, one) for word in words)]
    is_within = len(shared_known) == len(known) or len(shared) == len(words)
    is_but_the_last = len(words) == len(known) > 2 and words[:-1] == known[:-1]
    if not (is_within or is_but_the_last) or max(map(len, shared_known), default=0) < 3:
        return 0, 0
    return len(shared_known), len(shared_known) + len(shared) - len(words) - len(known)


def _is_same_word(word: str, known: str) -> bool:
    """Return whether a word is a known word, its beginning, an inflection, or ends with it."""
    if word == known or (len(word) > 3 and known.startswith(word)):
        return True
    is_inflected = word.removeprefix(known) in ("s", "es", "d", "ed", "er", "ing")
    is_inflected = is_inflected or word == known.removesuffix("e") + "ing"
    return len(known) > 3 and (is_inflected or word.endswith(known))

"""Names that a recipe may choose.

A registered name is a *frozen dataclass instance*: a full set of values, whose fields are the
recipe's keys. ``transformer_base`` and ``transformer_big`` are two entries of one class; a recipe
picks an entry and overrides single fields of it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from nmt.errors import NmtError

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """The entries of one kind, by name."""

    def __init__(self, kind: str, key: str = "name") -> None:
        """Makes an empty registry.

        Args:
            kind: what its entries are called in messages, such as "search strategy".
            key: the field that holds an entry's name, and the recipe's key that chooses one.
        """
        self.kind = kind
        self.key = key
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

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """A sentence for a name that does not exist: the nearest one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return f"unknown {kind} {name!r}; {remedy}"

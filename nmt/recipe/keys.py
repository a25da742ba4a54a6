"""The keys of a recipe, read from a table, so that help needs neither torch nor the dataclasses.

``docs/make_recipe_keys.py`` writes the table from the dataclasses that define the keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("keys.json")
_TYPES: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a recipe."""

    path: str
    """Dotted path, such as ``search.strategy.beam``."""
    type_name: str = "str"
    is_list: bool = False
    values: tuple[str, ...] = ()
    """Names that the key takes; for a choice, the registered ones."""
    documentation: str
    """The docstring below the field."""
    default: str = ""
    """Default in words, and the choices on which the default depends; empty for none."""
    needs: str = ""
    """Names of the choices that have the key, if the default choice has no such key."""

    @property
    def type(self) -> type:
        """bool, int, float or str."""
        return _TYPES[self.type_name]


@cache
def keys() -> dict[str, Key]:
    """Return all keys by path: keys of the default choices, and of every other choice."""
    table = json.loads(TABLE.read_bytes())
    return {row["path"]: Key(**{**row, "values": tuple(row.get("values", ()))}) for row in table}

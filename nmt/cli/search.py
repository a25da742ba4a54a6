"""Settings of commands that search: --precision, and the recipe's section ``search``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from nmt.cli.flags import Settings
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.recipe.config import build
from nmt.recipe.registry import unknown

if TYPE_CHECKING:
    from nmt.inference import SearchConfig
    from nmt.runtime.precision import InferencePrecision


def number_format(name: str) -> InferencePrecision:
    """Return the value of --precision, checked."""
    from nmt.runtime.precision import InferencePrecision

    names = get_args(InferencePrecision)
    if name not in names:
        raise NmtError(f"--precision: {unknown('value', name, names)}")
    return cast("InferencePrecision", name)


def search_settings(settings: Settings, recipe: Mapping[str, Any], count: int = 1) -> SearchConfig:
    """Return the settings of the search, which must find `count` translations of a line."""
    from nmt.inference import SearchConfig

    values = settings.load({"search": recipe.get("search") or {}}).section("search")
    search = build(SearchConfig, values, "search")
    search.check_count(count)
    if search.mbr is not None and search.strategy.max_hypotheses == 1:
        key = search.strategy.count_key
        way = f"raise search.strategy.{key}" if key else "take --strategy sample or beam"
        warn(f"--mbr: {search.strategy.name} finds one hypothesis, which agrees with itself; {way}")
    return search

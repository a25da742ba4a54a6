"""Tests of one function with many values, each test one loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def for_each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[..., Any]:
    """Runs a test once for each case, as `pytest.mark.parametrize` does, but as a single test."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    rows = [dict(zip(keys, it if len(keys) > 1 else (it,), strict=True)) for it in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def loop(*arguments: Any, **fixtures: Any) -> None:
            for row in rows:
                try:
                    test(*arguments, **fixtures, **row)
                except Exception as error:
                    raise AssertionError(f"with {row}: {error}") from error

        signature = inspect.signature(test)
        others = [it for it in signature.parameters.values() if it.name not in keys]
        loop.cases = rows  # type: ignore[attr-defined]
        loop.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return loop

    return decorate

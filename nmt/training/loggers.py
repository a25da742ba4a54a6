"""Loggers: where reports of training go besides the log, such as TensorBoard.

A logger is a file beside this one with a class that has the methods of :class:`Logger`, a key of
the section `train`, and a line in :mod:`nmt.training.chosen_loggers`. Each needs a package that is
an extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nmt.recipe.config import flatten
from nmt.runs import Run


class Logger(Protocol):
    """A place that receives the records of the log."""

    name: str
    """Key of the section `train` that turns it on."""

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Add a record of a kind, with the number of its update as `update`."""

    def close(self) -> None:
        """Send what was not sent yet."""


def numbers(kind: str, values: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a record by their names, RECORD/KEY."""
    return {
        f"{kind}/{name}": value
        for name, value in values.items()
        if name != "update" and isinstance(value, (int, float))
    }


def parameters(run: Run) -> dict[str, Any]:
    """Return the recipe of a run by dotted keys."""
    return flatten(run.recipe)

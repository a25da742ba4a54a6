"""The directions of a multilingual dataset or model, and which of them a user may choose.

A direction is a source and a target language. One model translates several directions if a tag in
each sentence says the target language (Johnson et al. 2017, *Google's Multilingual Neural Machine
Translation System*). It then also translates between languages whose direction was not trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nmt.errors import NmtError
from nmt.io.documents import DocumentFormat

DIRECTIONS_FILE = "directions.json"
"""Name of the file in a dataset, a run or an export. With a single direction there is no such
file."""

MOST_NAMES = 8
"""Languages of one side that a name or a message lists."""

Direction = tuple[str, str]
"""Source and target language."""

TagSide = Literal["source", "target", "both"]


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Content of ``directions.json``."""

    tags: TagSide = "source"
    """Side whose sentences begin with the tag of the target language; with "both", sources begin
    with the tag of their language, too."""
    trained: tuple[tuple[str, str], ...]
    """Source and target language of each direction of the training pairs."""

    def __post_init__(self) -> None:
        if not self.trained or len(set(self.trained)) < len(self.trained):
            raise ValueError("trained must name at least one direction, and none twice")

    @property
    def names(self) -> tuple[str, str]:
        """The languages of each side as one name, such as ``en+de`` and ``de+en``."""
        # Not a set, whose order would change file names from run to run.
        source, target = (list(dict.fromkeys(side)) for side in zip(*self.trained, strict=True))
        return _joined(source), _joined(target)

    # Cached, because a model of 200 languages has 40,000 directions.
    @cached_property
    def sources(self) -> list[str]:
        """The source languages."""
        return list(dict.fromkeys(source for source, _ in self.trained))

    @cached_property
    def targets(self) -> list[str]:
        """The target languages."""
        return list(dict.fromkeys(target for _, target in self.trained))

    @cached_property
    def _numbers(self) -> dict[Direction, int]:
        return {direction: number for number, direction in enumerate(self.trained)}

    def __contains__(self, direction: Direction) -> bool:
        """Return whether a direction is trained."""
        return direction in self._numbers

    def number(self, direction: Direction) -> int:
        """Return the number of a trained direction, from 0.

        Raises:
            NmtError: the direction is not trained.
        """
        if direction not in self:
            shown = _listed([*map("-".join, self.trained)])
            raise NmtError(f"there are no pairs of {'-'.join(direction)}, only of {shown}")
        return self._numbers[direction]

    def union(self, trained: Iterable[Direction]) -> Directions:
        """Return the union of these directions and `trained`, without duplicates."""
        return replace(self, trained=tuple(dict.fromkeys((*self.trained, *trained))))

    def among(self, source: str | None, target: str | None) -> Directions:
        """Return the directions from and into a language; None for any language.

        Raises:
            NmtError: there are none.
        """
        kept = [
            one for one in self.trained if source in (None, one[0]) and target in (None, one[1])
        ]
        if not kept:
            raise NmtError(
                f"no direction from {source or 'any language'} into {target or 'any language'}; "
                f"the model translates from {_listed(self.sources)} into {_listed(self.targets)}"
            )
        return replace(self, trained=tuple(kept))

    def choose(self, target: str | None = None, source: str | None = None) -> Direction:
        """Return the direction with these languages, which need not be trained.

        Args:
            target: target language; None for the only one.
            source: source language; None for the source language of a trained direction, which must
                be the only one if sources have tags of their language.

        Raises:
            NmtError: a language is unknown on its side, or several targets are possible.
        """
        if target is None:
            if len(self.targets) > 1:
                raise NmtError(
                    f"the model translates into {_listed(self.targets)}; choose one with -t "
                    "(in Python target_lang)"
                )
            target = self.targets[0]
        if target not in self.targets:
            raise NmtError(
                f"the model does not translate into {target!r}, only into {_listed(self.targets)}"
            )
        if source is None:
            source, *others = (one for one, other in self.trained if other == target)
            if others and self.tags == "both":
                raise NmtError(
                    f"the model translates into {target!r} from {_listed([source, *others])}; "
                    "choose one with -s (in Python source_lang)"
                )
        if source not in self.sources:
            raise NmtError(
                f"the model does not translate from {source!r}, only from {_listed(self.sources)}"
            )
        if source == target:
            raise NmtError(f"source and target language are both {source!r}; choose two")
        return source, target


DIRECTIONS = DocumentFormat(
    kind=Directions,
    name="nmt-directions",
    version=1,
    remedy="copy the directory again from where it came from, or make it again",
)


def _shortened(names: list[str], unit: str) -> list[str]:
    more = len(names) - MOST_NAMES
    return [*names[:MOST_NAMES], f"{more}{unit}"] if more > 0 else names


def _joined(names: list[str]) -> str:
    return "+".join(_shortened(names, "-more"))


def _listed(names: list[str]) -> str:
    *others, last = _shortened(names, " more")
    return f"{', '.join(others)} and {last}" if others else last

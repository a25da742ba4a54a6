"""The directions of a multilingual dataset or model, and which of them a user may choose.

A direction is a source and a target language. One model translates several directions if a tag in
each sentence says the target language (Johnson et al. 2017, *Google's Multilingual Neural Machine
Translation System*). It then also translates between languages whose direction was not trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from nmt.errors import NmtError
from nmt.io.documents import DocumentFormat

DIRECTIONS_FILE = "directions.json"
"""Name of the file in a dataset, a run or an export. With a single direction there is no such
file."""

MOST_NAMES = 8
"""Languages of one side that :attr:`Directions.names` lists."""

Direction = tuple[str, str]
"""Source and target language."""

TagSide = Literal["source", "target"]


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Content of ``directions.json``."""

    tags: TagSide = "source"
    """Side whose sentences begin with the tag of the target language."""
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

    @property
    def targets(self) -> list[str]:
        """The target languages."""
        return list(dict.fromkeys(target for _, target in self.trained))

    def number(self, direction: Direction) -> int:
        """Return the number of a trained direction, from 0.

        Raises:
            NmtError: the direction is not trained.
        """
        if direction not in self.trained:
            shown = ", ".join(map("-".join, self.trained))
            raise NmtError(f"there are no pairs of {'-'.join(direction)}, only of {shown}")
        return self.trained.index(direction)

    def union(self, trained: Iterable[Direction]) -> Directions:
        """Return the union of these directions and `trained`, without duplicates."""
        return Directions(tags=self.tags, trained=tuple(dict.fromkeys((*self.trained, *trained))))

    def choose(self, target: str | None = None, source: str | None = None) -> Direction:
        """Return the direction with these languages, which need not be trained.

        Args:
            target: target language; None for the only one.
            source: source language; None for the source language of a trained direction.

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
        sources = list(dict.fromkeys(one for one, _ in self.trained))
        if source is None:
            source = next(one for one, other in self.trained if other == target)
        if source not in sources:
            raise NmtError(
                f"the model does not translate from {source!r}, only from {_listed(sources)}"
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


def _joined(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return "+".join([*names[:MOST_NAMES], *([f"{more}-more"] if more > 0 else [])])


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last

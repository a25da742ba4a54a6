"""A text with inline markup: the text to translate, and the translation with the markup.

Each element of the source becomes one interval of target units: the one that holds the most units
that are aligned with the element's and the fewest that are aligned with others. The intervals of
neighbours do not overlap, and that of an inner element lies in that of the outer one, so the result
is well-formed and holds each tag once. Neighbours may change places.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from nmt.markup.nodes import Element, Kept, Marker, Node, Text, raw_of, text_of

PUNCTUATION = 0.25
"""Weight of a unit without letters and digits; alignments of punctuation are less certain."""

_WORD = re.compile(r"\w")


class Segment:
    """A text and the markup in it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Keep the inline nodes, at least one of which has text."""
        self.nodes = list(nodes)
        text = "".join(map(text_of, nodes))
        self._before = text[: len(text) - len(text.lstrip())]
        self._after = text[len(text.rstrip()) :]
        self._text = text

    @property
    def text(self) -> str:
        """The text to translate, one line; spaces at its ends are not part of it."""
        return self._text.strip()

    @property
    def has_markup(self) -> bool:
        """Whether there is more than text, so that :meth:`rendered` needs alignments."""
        return any(not isinstance(node, Text) for node in self.nodes)

    def rendered(
        self,
        translation: str,
        links: Sequence[tuple[int, int]] = (),
        starts: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> str:
        """Return a translation with the markup.

        Args:
            translation: of :attr:`text`.
            links: aligned units, by the offsets in text and translation at which they begin.
            starts: the offsets at which the units of text and translation begin.
        """
        if not self.has_markup:
            body = escaped(translation)
        else:
            shift = len(self._before)
            source = [shift + start for start in starts[0]]
            units = _Units(translation, starts[1], {t: shift + s for s, t in links})
            body = _Layout(self._text, source, units).render(self.nodes)
        return f"{escaped(self._before)}{body}{escaped(self._after)}"


def escaped(text: str) -> str:
    """Return text as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Units:
    """The units of a translation, and where in the source each one comes from."""

    def __init__(self, text: str, starts: Sequence[int], sources: dict[int, int]) -> None:
        self.text = text
        self.starts = list(starts)
        self.ends = [
            start + len(text[start:end].rstrip()) for start, end in pairwise([*starts, len(text)])
        ]
        self.sources = [sources.get(start) for start in starts]
        """Offset in the source of the aligned unit, or None."""
        self.weights = [
            1.0 if _WORD.search(text[start:end]) else PUNCTUATION
            for start, end in zip(self.starts, self.ends, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.starts)


class _Range(NamedTuple):
    """A stretch of characters of the source, or of units of the translation."""

    start: int
    end: int


def _around(text: str, within: _Range) -> tuple[str, str]:
    """Return the characters before and after a stretch of a text, empty at its ends."""
    return text[max(0, within.start - 1) : within.start], text[within.end : within.end + 1]


class _Placed(NamedTuple):
    """A node with its place."""

    units: _Range
    """Units of the translation; none for a point before the first."""
    order: int
    node: Node
    source: _Range
    """Characters of the source."""


class _Layout:
    """Writes a translation with the nodes of its source."""

    def __init__(self, source: str, starts: Sequence[int], units: _Units) -> None:
        self._source, self._starts, self._units = source, starts, units
        self._written: list[str] = []
        self._cursor = 0
        """Characters of the translation that are written."""

    def render(self, nodes: Sequence[Node]) -> str:
        """Return the translation with the nodes in it."""
        self._write(nodes, _Range(0, len(self._source)), _Range(0, len(self._units)))
        self._write_text(len(self._units.text))
        return "".join(self._written)

    def _write(self, nodes: Sequence[Node], source: _Range, units: _Range) -> None:
        """Write the nodes, and the text before and in them.

        Args:
            nodes: the content of an element, or of the segment.
            source: the characters of this element.
            units: the units of this element.
        """
        placed = self._place(nodes, source, units)
        for place in sorted(placed, key=lambda place: (place.units, place.order)):
            begin, end = place.units
            if begin < end:
                self._write_text(self._units.starts[begin])
            elif units.start < units.end:
                self._write_text(self._offset(begin, place.source.start, units))
            node = place.node
            if isinstance(node, Element):
                self._written.append(node.opening)
                self._write(node.children, place.source, place.units)
                if begin < end:
                    self._write_text(self._units.ends[end - 1])
                self._written.append(node.closing)
            elif begin < end:  # kept, in the place of its translation
                self._written.append(raw_of(node))
                self._cursor = max(self._cursor, self._kept_end(node, place))
            else:
                self._write_point(node, place.source)

    def _kept_end(self, node: Node, place: _Placed) -> int:
        """Return the end of what a kept node stands for: its own text if its word goes on.

        So does that of a placeholder, which no word ends, in a language without spaces.
        """
        start, last = self._units.starts[place.units.start], self._units.ends[place.units.end - 1]
        text, (_, after) = text_of(node), _around(self._source, place.source)
        goes_on = after.strip() or not text[-1:].isalnum()
        is_in_word = goes_on and self._units.text.startswith(text, start)
        return min(start + len(text), last) if is_in_word else last

    def _write_text(self, end: int) -> None:
        """Write the translation up to a character, if it is not written yet."""
        self._written.append(escaped(self._units.text[self._cursor : end]))
        self._cursor = max(self._cursor, end)

    def _write_point(self, node: Node, source: _Range) -> None:
        """Write a node that has no units, with the spaces of the source around it."""
        around = _around(self._units.text, _Range(self._cursor, self._cursor))
        spaces = _around(self._source, source)
        before, after = (
            " " if text.strip() and (space.isspace() or (text_of(node) and not space)) else ""
            for text, space in zip(around, spaces, strict=True)
        )
        self._written.append(f"{before}{raw_of(node)}{after}")

    def _offset(self, unit: int, start: int, units: _Range) -> int:
        """Return the character for a point before a unit, as the source has it by a space or not.

        Args:
            unit: among `units`, or their end.
            start: of the node in the source.
            units: those of the element around it, at least one.
        """
        if unit == units.start:
            return self._units.starts[unit]
        is_after_space = _around(self._source, _Range(start, start))[0].isspace()
        return (
            self._units.starts[unit]
            if is_after_space and unit < units.end
            else self._units.ends[unit - 1]
        )

    def _place(self, nodes: Sequence[Node], source: _Range, units: _Range) -> list[_Placed]:
        """Return the places of all nodes but text within the units of the element around them."""
        ends = [*accumulate((len(text_of(node)) for node in nodes), initial=source.start)]
        ranges = [_Range(*pair) for pair in pairwise(ends)]
        placed: list[_Placed] = []
        points: list[tuple[int, Node, _Range]] = []
        is_free = [units.start <= at < units.end for at in range(len(self._units))]
        for order, (node, within) in enumerate(zip(nodes, ranges, strict=True)):
            if isinstance(node, Text):
                continue
            interval = (
                None if isinstance(node, Marker) else self._interval(node, within, source, is_free)
            )
            if interval is None:
                points.append((order, node, within))
                continue
            is_free[interval.start : interval.end] = [False] * (interval.end - interval.start)
            placed.append(_Placed(interval, order, node, within))
        taken = list(placed)
        for order, node, within in points:
            at = self._point(within, source, units)
            for other in taken:
                if other.units.start < at < other.units.end:
                    at = other.units.end if other.order < order else other.units.start
            placed.append(_Placed(_Range(at, at), order, node, within))
        return placed

    def _interval(
        self, node: Node, within: _Range, source: _Range, is_free: list[bool]
    ) -> _Range | None:
        """Return the units of a node among those that are free; None without a good one."""
        claimed = self._claimed(within)
        if claimed and len(claimed) == len(self._claimed(source)) and isinstance(node, Element):
            free = [at for at, here in enumerate(is_free) if here]  # all of them, before others
            return (
                _Range(free[0], free[-1] + 1)
                if free and len(free) == free[-1] + 1 - free[0]
                else None
            )
        values = [
            0.0 if source is None else weight if source in claimed else -weight
            for source, weight in zip(self._units.sources, self._units.weights, strict=True)
        ]
        if isinstance(node, Kept) and (verbatim := self._verbatim(node.text, values, is_free)):
            return verbatim
        best, most, total, begin = None, 0.0, 0.0, 0
        for at, value in enumerate(values):
            if not is_free[at] or total + value <= 0:
                total, begin = 0.0, at + 1
                continue
            if total == 0 and value <= 0:
                begin = at + 1
                continue
            total += value
            if total > most:
                best, most = _Range(begin, at + 1), total
        return best

    def _verbatim(self, text: str, values: list[float], is_free: list[bool]) -> _Range | None:
        """Return the free units that spell a text, those with the highest values."""
        whole, starts = self._units.text, self._units.starts
        matches = []
        for match in re.finditer(re.escape(text.strip()), whole) if text.strip() else ():
            begin, end = bisect_left(starts, match.start()), bisect_left(starts, match.end())
            spelt = begin < end and (starts[begin], self._units.ends[end - 1]) == match.span()
            if spelt and all(is_free[begin:end]):
                matches.append(_Range(begin, end))
        return max(matches, key=lambda units: sum(values[units.start : units.end]), default=None)

    def _claimed(self, within: _Range) -> set[int]:
        """Return the units of the source that begin in a stretch, or the one it is a part of."""
        first, last = (bisect_left(self._starts, at) for at in within)
        if first == last and within.start < within.end and first:
            first -= 1
        return set(self._starts[first:last])

    def _point(self, within: _Range, source: _Range, units: _Range) -> int:
        """Return the unit before which a node without units stands in the translation."""
        begin, here, after, end = (
            bisect_left(self._starts, at) for at in (source.start, *within, source.end)
        )
        if begin == here:
            return units.start
        if after == end:
            return units.end
        for unit in reversed(self._starts[begin:here]):
            aligned = [at for at in range(*units) if self._units.sources[at] == unit]
            if aligned:
                return aligned[-1] + 1
        return units.start

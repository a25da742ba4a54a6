"""Split a line with inline markup into texts to translate, and put the tags into the translations.

Each element of the source becomes one interval of target units: the interval with the most units
aligned to the element and the fewest units aligned elsewhere. Intervals of siblings do not overlap,
and an inner interval lies in the outer one, so the result is well-formed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from nmt.inference.markup.units import (
    Alignment,
    Element,
    Kept,
    Node,
    Range,
    TextNode,
    Unit,
    raw_of,
    text_of,
    unbroken,
)


class Segment:
    """A text and the markup in it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Keep the inline nodes, at least one of which has text."""
        self.nodes = list(nodes)
        text = "".join(map(text_of, nodes))
        self._text = unbroken(text)
        outside = "".join(map(_outside, nodes))
        self._before = outside[: len(outside) - len(outside.lstrip())]
        self._after = outside[len(outside.rstrip()) :]

    @property
    def text(self) -> str:
        """The text to translate, one line; spaces at its ends are not part of it."""
        return self._text.strip()

    @property
    def has_markup(self) -> bool:
        """Whether there is more than text, so that :meth:`rendered` needs alignments."""
        return any(not isinstance(node, TextNode) for node in self.nodes)

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
            shift = len(self._text) - len(self._text.lstrip())
            links = [(shift + source, target) for source, target in links]
            starts = [shift + start for start in starts[0]], starts[1]
            units = Alignment(self._text, self.nodes, translation, links, starts).units()
            body = _Layout(self._text, units).written(self.nodes)
        return f"{escaped(self._before)}{body}{escaped(self._after)}"


def escaped(text: str) -> str:
    """Return text as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Place(NamedTuple):
    """A node with its place."""

    units: Range
    """Units of the translation; none for a point before the first."""
    order: int
    node: Node
    source: Range
    """Characters of the source."""


class _Layout:
    """Writes a translation with the nodes of its source.

    A unit N has its text in slot 2N + 1, and the space after it in slot 2N + 2.
    """

    def __init__(self, source: str, units: Sequence[Unit]) -> None:
        self._source, self._units = source, units
        self._slots = ["", *(part for unit in units for part in (unit.text, unit.space))]
        self._sources = sorted(
            (unit.source, at) for at, unit in enumerate(units) if unit.source is not None
        )
        """Offsets in the source, and the units that are aligned with what stands there."""

    def written(self, nodes: Sequence[Node]) -> str:
        """Return the translation with the nodes in it."""
        whole = Range(0, len(self._source)), Range(0, len(self._units))
        return self._content(nodes, *whole).strip()

    def _content(self, nodes: Sequence[Node], source: Range, units: Range) -> str:
        """Return the content of an element, or of the segment.

        Args:
            nodes: the content.
            source: the characters of the element.
            units: the units of the element, at least one.
        """
        content, slot = "", 2 * units.start + 1
        places = self._places(nodes, source, units)
        # The order of the source decides between nodes at one place.
        for place in sorted(places, key=lambda place: (place.units, place.order)):
            node, (begin, end) = place.node, place.units
            if begin == end:
                # Never before what has been written already.
                start = max(slot, self._slot(begin, place.source.start, units))
                content += self._text(slot, start)
                content += self._point(place, start, content[-1:])
                slot = start
                continue
            content += self._text(slot, 2 * begin + 1)
            if isinstance(node, Element):
                inner = self._content(node.children, place.source, place.units)
                content += f"{node.opening}{inner}{node.closing}"
            else:
                content += raw_of(node)
            slot = 2 * end
        return content + self._text(slot, 2 * units.end)

    def _text(self, begin: int, end: int) -> str:
        """Return the text in some slots, without units of kept nodes that stand elsewhere.

        The space after such a unit is left out, too, if there is one before.
        """
        return escaped(
            "".join(
                self._slots[slot]
                for slot in range(begin, end)
                if self._units[(slot - 1) // 2].is_text
                or (slot % 2 == 0 and (slot == begin or not self._slots[slot - 2]))
            )
        )

    def _point(self, place: _Place, slot: int, last: str) -> str:
        """Return a node without units, with the spaces of the source around what it holds.

        Args:
            place: of the node.
            slot: the one before which it stands.
            last: the character before it in the element, if any.
        """
        bare, text = _bare(place.node), _kept_text(place.node)
        if isinstance(place.node, Element) and not text:
            return bare
        sides = (
            last or "".join(self._slots[:slot])[-1:],
            "".join(self._slots[slot : slot + 2])[:1],
        )
        start, end = place.source
        spaces = self._source[:start][-1:], self._source[end : end + 1]
        before, after = (
            " " * bool(side.strip() and (space.isspace() or (text and not space)))
            for side, space in zip(sides, spaces, strict=True)
        )
        return f"{before}{bare}{after}"

    def _slot(self, unit: int, start: int, units: Range) -> int:
        """Return the slot for a point before a unit, as the source has it by a space or not.

        Args:
            unit: among `units`, or their end.
            start: of the node in the source.
            units: the units of the element around it, at least one.
        """
        is_after_space = self._source[:start][-1:].isspace() and unit < units.end
        return 2 * unit + (is_after_space or unit == units.start)

    def _places(self, nodes: Sequence[Node], source: Range, units: Range) -> list[_Place]:
        """Return the places of all nodes but text within the units of the element around them."""
        ends = accumulate((len(text_of(node)) for node in nodes), initial=source.start)
        ranges = [Range(*pair) for pair in pairwise(ends)]
        stretches: list[_Place] = []
        points: list[tuple[int, Node, Range]] = []
        free = set(range(*units))
        for order, (node, within) in enumerate(zip(nodes, ranges, strict=True)):
            if isinstance(node, TextNode):
                continue
            stretch = self._stretch(node, within, source, units, free)
            if stretch:
                free.difference_update(range(*stretch))
                stretches.append(_Place(stretch, order, node, within))
            else:
                points.append((order, node, within))
        places = list(stretches)
        # Points come last: they are moved out of every stretch that they would divide.
        for order, node, within in points:
            at = self._unit_after(within, source, units)
            for other in stretches:
                if other.units.start < at < other.units.end:
                    at = other.units.end if other.order < order else other.units.start
            places.append(_Place(Range(at, at), order, node, within))
        return places

    def _stretch(
        self, node: Node, within: Range, source: Range, units: Range, free: set[int]
    ) -> Range | None:
        """Return the units of a node among the free units; None if no unit fits."""
        text = self._source[within.start : within.end]
        if isinstance(node, Element) and text.strip() and self._is_all(within, source):
            return units  # all of them, before other candidates
        aligned = self._aligned(within, units)
        begin, end = min(aligned, default=0), max(aligned, default=-1) + 1
        # The stretch with the greatest sum (Kadane's algorithm); units aligned elsewhere are
        # negative.
        best, most, total = None, 0.0, 0.0
        for at in range(begin, end):
            total += _value(self._units[at], node, within) if at in free else -inf
            if total <= 0:
                total, begin = 0.0, at + 1
            if total > most:
                best, most = Range(begin, at + 1), total
        return best

    def _is_all(self, within: Range, source: Range) -> bool:
        """Return whether all text of an element is in one of its nodes."""
        before, after = Range(source.start, within.start), Range(within.end, source.end)
        return not any(self._source[start:end].strip() for start, end in (before, after))

    def _unit_after(self, within: Range, source: Range, units: Range) -> int:
        """Return the unit before which a node without units stands in the translation."""
        if not self._source[source.start : within.start].strip():
            return units.start
        if not self._source[within.end : source.end].strip():
            return units.end
        aligned = self._aligned(Range(source.start, within.start), units)
        return aligned[-1] + 1 if aligned else units.start

    def _aligned(self, source: Range, units: Range) -> list[int]:
        """Return the units aligned with a stretch of the source, in the order of the source."""
        first, last = (bisect_left(self._sources, (at,)) for at in source)
        return [at for _, at in self._sources[first:last] if units.start <= at < units.end]


def _value(unit: Unit, node: Node, within: Range) -> float:
    """Return the weight of a unit for a node, below zero against it."""
    if unit.source is not None and within.start <= unit.source < within.end:
        return unit.weight
    if isinstance(node, Kept):
        return -inf  # it replaces nothing else
    if unit.source is None:
        return 0.0
    return -unit.weight if unit.is_text else -inf


def _bare(node: Node) -> str:
    """Return a node without its text to translate."""
    if isinstance(node, Element):
        return f"{node.opening}{''.join(map(_bare, node.children))}{node.closing}"
    return "" if isinstance(node, TextNode) else node.raw


def _kept_text(node: Node) -> str:
    """Return the text of the kept nodes in a node."""
    if isinstance(node, Element):
        return "".join(map(_kept_text, node.children))
    return node.text if isinstance(node, Kept) else ""


def _outside(node: Node) -> str:
    """Return the text of a node with a letter for each kept one, whose spaces stand in it."""
    if isinstance(node, Element):
        return "".join(map(_outside, node.children))
    return "x" if isinstance(node, Kept) else text_of(node)


class Fragment:
    """A line of markup. Block elements divide it into segments, each translated by itself."""

    def __init__(self, root: Element) -> None:
        self.parts: list[str | Segment] = list(_parts(root))
        """Fixed parts, and segments."""

    @property
    def segments(self) -> list[Segment]:
        """The segments, in order."""
        return [part for part in self.parts if isinstance(part, Segment)]

    def join(self, translations: Iterable[str]) -> str:
        """Return the line with each segment replaced by its translation, which has its tags."""
        waiting = iter(translations)
        return "".join(part if isinstance(part, str) else next(waiting) for part in self.parts)


def _parts(element: Element) -> Iterator[str | Segment]:
    """Yield the parts of an element that is a block or holds one, or of the root."""
    yield element.opening
    inline: list[Node] = []
    for child in element.children:
        if isinstance(child, TextNode) or not _divides(child):
            inline.append(child)
            continue
        yield from _segment(inline)
        inline = []
        if isinstance(child, Element):
            yield from _parts(child)
        else:
            yield raw_of(child)
    yield from _segment(inline)
    yield element.closing


def _divides(node: Node) -> bool:
    if isinstance(node, Element):
        return node.has_block
    return not isinstance(node, TextNode) and node.is_block


def _segment(nodes: list[Node]) -> Iterator[str | Segment]:
    """Yield the segment of inline nodes, without the tags at its ends that have no text."""
    begin, end = 0, len(nodes)
    if any(map(_has_text, nodes)):
        while not text_of(nodes[begin]).strip():
            begin += 1
        while not text_of(nodes[end - 1]).strip():
            end -= 1
        yield from map(raw_of, nodes[:begin])
        yield Segment(nodes[begin:end])
        begin = end
    yield from map(raw_of, nodes[begin:])


def _has_text(node: Node) -> bool:
    """Return whether a node has text to translate."""
    if isinstance(node, Element):
        return any(map(_has_text, node.children))
    return isinstance(node, TextNode) and bool(node.text.strip())

"""A fragment of markup as fixed parts and segments, the texts that are translated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nmt.markup.nodes import Element, Node, Text, raw_of, text_of
from nmt.markup.segment import Segment


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
        if isinstance(child, Text) or not _divides(child):
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
    return not isinstance(node, Text) and node.is_block


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
    return isinstance(node, Text) and bool(node.text.strip())

"""The units of a translation, each with its place in the tree of the source's markup.

A kept node that the translation spells becomes one unit. The node divides the word around it if it
is a part of a word. A source word that several nodes share belongs to the innermost one.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

Dialect = Literal["html", "xliff"]


@dataclass(frozen=True)
class TextNode:
    """Text to translate."""

    raw: str
    """The source, with entities."""
    text: str
    """The characters, with entities resolved."""


@dataclass(frozen=True)
class Marker:
    """A tag without content, a comment, or a script: a point in the text."""

    raw: str
    is_block: bool = False
    """Whether the texts before and after it are different sentences."""


@dataclass(frozen=True)
class Kept:
    """A stretch that is not translated: a placeholder, code, or an element with translate="no"."""

    raw: str
    text: str
    """Its text without tags, which the sentence around it needs."""
    is_block: bool = False


@dataclass
class Element:
    """An element with its content."""

    name: str = ""
    opening: str = ""
    closing: str = ""
    is_block: bool = False
    is_kept: bool = False
    """Whether the content is not translated."""
    children: list[Node] = field(default_factory=list)

    @property
    def has_block(self) -> bool:
        """Whether the element is a block or holds one, which divides the text."""
        return self.is_block or any(
            child.has_block if isinstance(child, Element) else child.is_block
            for child in self.children
            if not isinstance(child, TextNode)
        )


Node = TextNode | Marker | Kept | Element


def raw_of(node: Node) -> str:
    """Return a node as written, with the closing tags that were missing."""
    if isinstance(node, Element):
        return f"{node.opening}{''.join(map(raw_of, node.children))}{node.closing}"
    if isinstance(node, TextNode):
        # A lone "<" was text in the source, and must not begin a tag in the output.
        return node.raw.replace("<", "&lt;")
    return node.raw


def text_of(node: Node) -> str:
    """Return the text of a node, without tags and with entities resolved."""
    if isinstance(node, Element):
        return "".join(map(text_of, node.children))
    return "" if isinstance(node, Marker) else node.text


def unbroken(text: str) -> str:
    """Return a text with a space for each line break."""
    return text.replace("\n", " ").replace("\r", " ")


PUNCTUATION = 0.25
"""Weight of a unit without letters and digits; alignments of punctuation are less certain."""

_WORD = re.compile(r"\w")

_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Nd", "Pc"})
"""Unicode categories within words of scripts that have spaces between words."""


class Range(NamedTuple):
    """A stretch of characters, or of units of the translation."""

    start: int
    end: int


class Unit(NamedTuple):
    """A unit of the translation."""

    text: str
    space: str
    """White space after it."""
    source: int | None
    """Offset in the source, in the node that the unit is aligned with, or None."""
    weight: float
    """Weight of the alignment."""
    is_text: bool = True
    """Whether the unit is written as text: it spells no kept node."""


class _Leaf(NamedTuple):
    """A node of text or a kept one in the source, without the spaces at its ends."""

    text: str
    start: int
    depth: int
    """Elements around it."""
    is_kept: bool
    is_placeholder: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _leaves(nodes: Sequence[Node], start: int = 0, depth: int = 0) -> Iterator[_Leaf]:
    """Yield the leaves that are not blank; `start` is the offset of the nodes."""
    for node in nodes:
        text = unbroken(text_of(node))
        if isinstance(node, Element):
            yield from _leaves(node.children, start, depth + 1)
        elif text.strip():
            offset = start + len(text) - len(text.lstrip())
            is_kept = isinstance(node, Kept)
            # An element has tags, so its text differs from its source.
            is_placeholder = isinstance(node, Kept) and node.raw == node.text
            yield _Leaf(text.strip(), offset, depth, is_kept, is_placeholder)
        start += len(text)


class Alignment:
    """A source with its leaves, and a translation with aligned units."""

    def __init__(
        self,
        source: str,
        nodes: Sequence[Node],
        translation: str,
        links: Sequence[tuple[int, int]],
        starts: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        """Keep the units of both sides.

        Args:
            source: the text of the nodes.
            nodes: the source with its markup.
            translation: of the source.
            links: aligned units, by the offsets in source and translation at which they begin.
            starts: the offsets at which the units of source and translation begin.
        """
        self._source, self._translation = source, translation
        self._leaves = list(_leaves(nodes))
        self._owners: list[_Leaf | None] = [None] * len(self._source)
        """Leaf of each character of the source."""
        for leaf in self._leaves:
            self._owners[leaf.start : leaf.end] = [leaf] * len(leaf.text)
        self._starts = sorted({len(translation) - len(translation.lstrip()), *starts[1]})
        sources = {
            start: Range(start, start + len(source[start:end].rstrip()))
            for start, end in pairwise([*starts[0], len(source)])
        }
        linked = {target: sources.get(start) for start, target in links}
        self._links = [linked.get(start) for start in self._starts]
        """Unit of the source that is aligned with each unit of the translation, or None."""

    def units(self) -> list[Unit]:
        """Return the units of the translation, divided at the kept nodes that it spells."""
        spelt = self._spelt()
        kept = {leaf for _, leaf in spelt.values() if leaf}
        inside = {at for start, (end, _) in spelt.items() for at in range(start + 1, end)}
        ends = {end for end, _ in spelt.values() if self._translation[end : end + 1].strip()}
        cuts = sorted({*self._starts, *spelt, *ends} - inside)
        units, past = list[Unit](), 0
        for start, end in pairwise([*cuts, len(self._translation)]):
            text = self._translation[start:end].rstrip()
            space = self._translation[start + len(text) : end]
            if start in spelt:
                _, leaf = spelt[start]
                past = leaf.end if leaf else past
                source = leaf.start if leaf else None
            else:
                at = bisect_right(self._starts, start) - 1
                past = 0 if start == self._starts[at] else past
                source = self._offset(self._links[at], past, kept)
            weight = 1.0 if _WORD.search(text) else PUNCTUATION
            units.append(Unit(text, space, source, weight, is_text=start not in spelt))
        return units

    def _spelt(self) -> dict[int, tuple[int, _Leaf | None]]:
        """Return the stretches of the translation that spell kept nodes, by their first characters.

        A stretch has its end and its leaf, or None if it is a placeholder that the translation
        holds more often than the source.
        """
        spelt: dict[int, tuple[int, _Leaf | None]] = {}
        taken, taken_source = set[int](), set[int]()
        kept = [leaf for leaf in self._leaves if leaf.is_kept]
        kept.sort(key=lambda leaf: (-len(leaf.text), leaf.text))  # "{x}" is also in "{{x}}"
        for text, group in groupby(kept, key=lambda leaf: leaf.text):
            leaves = list(group)
            in_source = _occurrences(text, self._source, taken_source)
            places = _occurrences(text, self._translation, taken)
            chosen = self._chosen(leaves, in_source, places)
            if any(leaf.is_placeholder for leaf in leaves):
                free = [at for at in places if at not in chosen]
                chosen |= dict.fromkeys(free[len(in_source) - len(leaves) :])
            spelt |= {at: (at + len(text), leaf) for at, leaf in chosen.items()}
            taken.update(at + shift for at in chosen for shift in range(len(text)))
            taken_source.update(at for leaf in leaves for at in range(leaf.start, leaf.end))
        return spelt

    def _chosen(
        self, leaves: list[_Leaf], in_source: list[int], places: list[int]
    ) -> dict[int, _Leaf | None]:
        """Return the best places in the translation for kept leaves of one text.

        Args:
            leaves: in the order of the source.
            in_source: all offsets of their text in the source.
            places: all its offsets in the translation.
        """
        chosen: dict[int, _Leaf | None] = {}
        free = list(enumerate(places))
        for leaf in leaves:
            order = in_source.index(leaf.start)
            options = [
                (self._score(leaf, at), -abs(rank - order), -at)
                for rank, at in free
                if self._fits(leaf, at)
            ]
            if options:
                start = -max(options)[-1]
                chosen[start] = leaf
                free = [(rank, at) for rank, at in free if abs(at - start) >= len(leaf.text)]
        return chosen

    def _fits(self, leaf: _Leaf, at: int) -> bool:
        """Return whether a leaf may be spelt at an offset of the translation.

        A leaf but a placeholder divides a word there only on a side where it does in the source:
        "Esc" is not spelt in "Escape".
        """
        sides = ((leaf.start, at), (leaf.end, at + len(leaf.text)))
        return leaf.is_placeholder or all(
            _is_in_word(self._source, source) or not _is_in_word(self._translation, target)
            for source, target in sides
        )

    def _score(self, leaf: _Leaf, at: int) -> float:
        """Return the sum of alignments for a leaf at an offset, less the alignments against it."""
        first = bisect_right(self._starts, at) - 1
        last = bisect_left(self._starts, at + len(leaf.text))
        return sum(
            1 if leaf in self._owners[link.start : link.end] else -1
            for link in self._links[first:last]
            if link
        )

    def _offset(self, unit: Range | None, past: int, kept: set[_Leaf]) -> int | None:
        """Return the offset of a unit of the source in one of its leaves, leaves of text first.

        Args:
            unit: of the source.
            past: end of the kept node that is spelt before this part of the unit, or 0.
            kept: the leaves that are spelt elsewhere.
        """
        if not unit:
            return None
        first, last = self._owners[unit.start], self._owners[unit.end - 1]
        if first and first is last and not first.is_kept:
            return unit.start  # most words
        leaves = [leaf for leaf in dict.fromkeys(self._owners[unit.start : unit.end]) if leaf]
        runs = groupby(leaves, key=lambda leaf: leaf.is_kept)
        texts = [list(run) for is_kept, run in runs if not is_kept]
        if texts:
            leaves = next((run for run in texts if run[0].start >= past), texts[-1])
        else:
            leaves = [leaf for leaf in leaves if leaf not in kept]
        innermost = max(leaves, key=lambda leaf: leaf.depth, default=None)
        return max(unit.start, innermost.start) if innermost else None


def _occurrences(text: str, line: str, taken: set[int]) -> list[int]:
    """Return the offsets of a text in a line, where no character of the line is taken."""
    # A lookahead also finds occurrences that overlap.
    offsets = (match.start() for match in re.finditer(f"(?={re.escape(text)})", line))
    return [at for at in offsets if taken.isdisjoint(range(at, at + len(text)))]


def _is_in_word(text: str, at: int) -> bool:
    """Return whether the characters before and after an offset belong to one word."""
    categories = [unicodedata.category(character) for character in text[max(0, at - 1) : at + 1]]
    return len(categories) == 2 and (
        categories[1][0] == "M" or _WORD_CATEGORIES.issuperset(categories)
    )

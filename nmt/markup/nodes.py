"""The tree of a fragment of markup: elements, text, and what is kept as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Dialect = Literal["html", "xliff"]


@dataclass(frozen=True)
class Text:
    """Text to translate."""

    raw: str
    """The source, with entities."""
    text: str
    """The characters, with entities resolved and spaces for line breaks."""


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
            if not isinstance(child, Text)
        )


Node = Text | Marker | Kept | Element


def raw_of(node: Node) -> str:
    """Return a node as written, with the closing tags that were missing."""
    if isinstance(node, Element):
        return f"{node.opening}{''.join(map(raw_of, node.children))}{node.closing}"
    if isinstance(node, Text):
        return node.raw.replace("<", "&lt;")
    return node.raw


def text_of(node: Node) -> str:
    """Return the text of a node, without tags and with entities resolved."""
    if isinstance(node, Element):
        return "".join(map(text_of, node.children))
    return "" if isinstance(node, Marker) else node.text

"""Read a line of HTML or of XLIFF's inline elements as a tree, and mend what is broken.

Python's ``html.parser`` finds the tags. As in a browser, an end tag without a beginning is left
out, and an element without an end tag ends where the element around it does.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Literal

from nmt.inference.markup.segment import Fragment
from nmt.inference.markup.units import (
    Dialect,
    Element,
    Kept,
    Marker,
    Node,
    TextNode,
    raw_of,
    text_of,
    unbroken,
)


def _names(*names: str) -> frozenset[str]:
    """Return the names in some lists divided by spaces."""
    return frozenset(name for line in names for name in line.split())


VOID = _names("area base br col embed hr img input link meta param source track wbr")
"""Elements of HTML without content and without an end tag."""

BLOCKS = _names(
    "address article aside blockquote body br caption center col colgroup dd details dialog dir",
    "div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header",
    "hr html legend li link main menu meta nav noscript ol optgroup option p pre script section",
    "select style summary table tbody td template textarea tfoot th thead title tr ul",
)
"""Elements of HTML that end a sentence."""

SILENT = _names("script style")
"""Elements of HTML whose content is no text."""

CODE = _names("code kbd math samp svg")
"""Elements of HTML whose text is not translated."""

NATIVE = _names("bpt ept it ph")
"""Elements of XLIFF whose content is code of the original document, no text."""

MAX_DEPTH = 50
"""Levels of nested elements; a deeper element is empty, and its content follows the element."""

_SECTIONS = ("tbody", "thead", "tfoot")

ENDED_BY = {
    "li": ("li",),
    "p": ("p", "div", "ul", "ol", "table", "h1", "h2", "h3", "blockquote", "pre", "hr", "form"),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
    "td": ("td", "th", "tr", *_SECTIONS),
    "th": ("td", "th", "tr", *_SECTIONS),
    "tr": ("tr", *_SECTIONS),
    "option": ("option", "optgroup"),
}
"""Elements of HTML that need no end tag, with the elements that end them by their beginning."""

PLACEHOLDERS = {
    "statement": r"\{%(?:[^%{]|%(?!\})|\{(?!%))*%\}|\{#[^{}]*#\}",
    "server page": r"<%(?:[^%<]|%(?!>)|<(?!%))*%>",
    "mustache": r"\{\{[^{}]*\}\}",
    "choice": r"\{\s*[\w.-]+\s*,\s*(?:plural|select|selectordinal)\s*,"
    r"[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*\}",
    "expression": r"[$#]\{[^{}]*\}",
    "named": r"%\{[\w.-]+\}|%\([\w.-]+\)[-+#0]*(?:[1-9]\d*)?(?:\.\d+)?[a-z]",
    "braces": r"\{[\w.:, !\[\]-]*\}",
    "printf": r"%(?:\d+\$)?[-+#0]*(?:[1-9]\d*|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[Ljzt])?"
    r"[diouxXeEfFgGcs@](?!\w)",
    "brackets": r"\[\[[\w.-]+\]\]",
}
"""Families of variables and statements in messages and templates of programs, the longest first;
docs/guides/markup.md shows examples of each."""

_TEMPLATE = re.compile("|".join(PLACEHOLDERS[name] for name in ("statement", "server page")))
"""Placeholders that may hold tags."""

VERBATIM = _names("pre textarea")
"""Elements of HTML whose line feeds are shown, so that each of their lines is a text."""

_NAME = re.compile(r"</?\s*([^\s/>]+)")

Kind = Literal["start", "single", "end", "text", "other"]
Event = tuple[Kind, int, list[tuple[str, str | None]]]
"""Markup or text, the offset at which it begins, and the attributes of a tag."""


def parse(line: str, dialect: Dialect = "html", placeholders: Sequence[str] = ()) -> Fragment:
    """Return the fragment of markup that a line holds.

    Args:
        line: any text; anything that is not markup is text. A line feed in a text is a space;
            anything that is not translated keeps its line feeds.
        dialect: "html"; or "xliff", where all elements are inline, any may be empty, and names
            distinguish case.
        placeholders: regular expressions of further placeholders, which come before the families
            of :data:`PLACEHOLDERS`.
    """
    patterns = (*(f"(?:{pattern})" for pattern in placeholders), *PLACEHOLDERS.values())
    tree = _Tree(dialect, re.compile("|".join(patterns)))
    events = _events(line)
    ends = [start for _, start, _ in events[1:]] + [len(line)]
    for (kind, start, attributes), end in zip(events, ends, strict=True):
        raw = line[start:end]
        is_whole = raw.endswith("-->" if raw.startswith("<!--") else ">")  # or it is text
        tree.add(kind if is_whole else "text", raw, attributes)
    return Fragment(tree.finished())


def _events(line: str) -> list[Event]:
    """Return what begins where in a line, from its first character on; texts may be empty."""
    # Of the same length: html.parser counts columns from the last line feed, and would read tags in
    # templates.
    line = _TEMPLATE.sub(lambda match: "+" * len(match[0]), unbroken(line))
    tail = line.rfind(">") + 1  # no tag begins after it; html.parser would look for its end
    reader = _Reader()
    reader.feed(line[:tail].replace("&", "+"))  # all after a broken "&#" would be text
    reader.close()
    return [("text", 0, []), *reader.events, ("text", tail, [])]


class _Reader(HTMLParser):
    """Notes where tags, comments and text begin."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[Event] = []

    def _note(self, kind: Kind, attributes: list[tuple[str, str | None]] | None = None) -> None:
        offset = self.getpos()[1]
        if self.events and self.events[-1][1] == offset:  # a tag in pieces
            self.events.pop()
        self.events.append((kind, offset, attributes or []))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note("start", attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note("single", attrs)

    def handle_endtag(self, tag: str) -> None:
        self._note("end")

    def handle_data(self, data: str) -> None:
        self._note("text")

    def handle_comment(self, data: str) -> None:
        self._note("other")

    def handle_decl(self, decl: str) -> None:
        self._note("other")

    def handle_pi(self, data: str) -> None:
        self._note("other")

    def unknown_decl(self, data: str) -> None:
        self._note("other")

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Return the end of a stretch from "<![" on: a comment, as in a browser, if not CDATA."""
        if self.rawdata.startswith("<![CDATA[", i):
            return super().parse_marked_section(i, report)
        return self.parse_bogus_comment(i)


class _Tree:
    """A tree under construction."""

    def __init__(self, dialect: Dialect, placeholder: re.Pattern[str]) -> None:
        self.is_html = dialect == "html"
        self.placeholder = placeholder
        self.open = [Element()]
        self.text = ""

    def add(self, kind: Kind, raw: str, attributes: list[tuple[str, str | None]]) -> None:
        """Add what was read; `raw` is as written."""
        if kind == "text":
            self.text += raw  # events divide text at "<"
            return
        match = _NAME.match(raw)
        name = match[1] if match else ""
        name = name.lower() if self.is_html else name
        self._end_text()
        is_block = self.is_html and name in BLOCKS
        if kind == "end":
            self._end(name)
        elif kind == "other":
            if not raw.startswith("</"):  # an end tag without a name
                self.open[-1].children.append(Marker(raw))
        elif kind == "single" or (self.is_html and name in VOID):
            self._end_implied(name)
            self.open[-1].children.append(Marker(raw, is_block))
        else:
            self._end_implied(name)
            is_kept = _is_protected(dict(attributes)) or (self.is_html and name in CODE | SILENT)
            closing = f"</{match[1] if match else name}>"
            # All later walks through the tree are recursive, which Python limits.
            if len(self.open) > MAX_DEPTH:
                self.open[-1].children.append(Marker(raw + closing, is_block))
            else:
                self.open.append(Element(name, raw, closing, is_block, is_kept))

    def finished(self) -> Element:
        """Return the root, with all elements ended."""
        self._end_text()
        while len(self.open) > 1:
            self._pop()
        return self.open[0]

    def _end_implied(self, name: str) -> None:
        """End the open elements that the beginning of a new element ends."""
        while self.is_html and name in ENDED_BY.get(self.open[-1].name, ()):
            self._pop()

    def _end(self, name: str) -> None:
        """End the innermost open element of a name, and the elements in it, if there is one."""
        if name in [element.name for element in self.open[1:]]:
            while self.open[-1].name != name:
                self._pop()
            self._pop()

    def _pop(self) -> None:
        element = self.open.pop()
        node: Node = element
        if not self.is_html and element.name in NATIVE:
            node = Marker(raw_of(element))
        elif self.is_html and element.name in SILENT:
            node = Marker(_verbatim(element), element.is_block)
        elif element.is_kept:
            node = Kept(raw_of(element), text_of(element), element.has_block)
        self.open[-1].children.append(node)

    def _end_text(self) -> None:
        """Add the text so far, divided at placeholders."""
        raw, self.text = self.text, ""
        start = 0
        children = self.open[-1].children
        for match in self.placeholder.finditer(raw):
            if not match[0]:  # a pattern of the user may match nothing
                continue
            self._add_text(children, raw[start : match.start()])
            children.append(Kept(match[0], match[0]))
            start = match.end()
        self._add_text(children, raw[start:])

    def _add_text(self, children: list[Node], raw: str) -> None:
        """Add text without placeholders; each line feed that is shown divides it."""
        is_shown = self.is_html and any(element.name in VERBATIM for element in self.open)
        for part in re.split(r"(\r?\n)", raw) if is_shown else [raw]:
            if is_shown and part.endswith("\n"):
                children.append(Marker(part, is_block=True))
            elif part:
                children.append(TextNode(part, _unescaped(part)))


def _unescaped(raw: str) -> str:
    """Return text with entities resolved; line feeds stay, but entities of them are spaces."""
    parts = re.split(r"([\r\n])", raw)
    return "".join(part if part in "\r\n" else unbroken(html.unescape(part)) for part in parts)


def _is_protected(attributes: dict[str, str | None]) -> bool:
    """Return whether attributes say that the content is not translated."""
    return (
        (attributes.get("translate") or "").lower() == "no"
        or attributes.get("mtype") == "protected"
        or "notranslate" in (attributes.get("class") or "").split()
    )


def _verbatim(element: Element) -> str:
    """Return a script as written, where "<" needs no entity."""
    content = "".join(
        child.raw if isinstance(child, (TextNode, Kept, Marker)) else raw_of(child)
        for child in element.children
    )
    return f"{element.opening}{content}{element.closing}"

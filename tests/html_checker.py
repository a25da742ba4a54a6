"""Reads pages that `nmt` writes, and notes what a whole page may not have."""

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "input", "br", "link", "img"}


class Checker(HTMLParser):
    """Reads a page: elements that were not closed, what refers elsewhere, scripts, ids, outline."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.referred: list[str] = []
        self.scripts: list[str] = []
        self.labelled: list[str] = []
        self.texts: dict[str, str] = {}
        self.headings: list[str] = []
        self.regions: list[dict[str, str | None]] = []
        self.open_ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
            self.open_ids.append(values.get("id") or "")
        if "template" not in self.open:
            if re.fullmatch("h[1-6]", tag):
                self.headings.append(tag)
            if tag in ("section", "nav", "aside") or values.get("role") == "region":
                self.regions.append(values)
        if tag == "script":
            self.scripts.append("")
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data"):
                self.referred.append(str(value))
            if name == "id":
                self.ids.append(str(value))
            if name == "aria-labelledby":
                self.labelled.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.open_ids.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        for name in self.open_ids:
            self.texts[name] = self.texts.get(name, "") + data

    def assert_outline(self) -> None:
        """Headings begin with h1 and skip no level; each landmark has a name that no other has."""
        levels = [int(tag[1]) for tag in self.headings]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(below - above <= 1 for above, below in pairwise(levels)), self.headings
        names = [
            region.get("aria-label") or self.texts.get(region.get("aria-labelledby") or "", "")
            for region in self.regions
        ]
        assert all(name.strip() for name in names), names
        assert len({*names}) == len(names), names

"""Reads pages that `nmt` writes, and notes what a whole page may not have."""

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "link", "img"}


class Checker(HTMLParser):
    """Reads a page: elements that were not closed, what refers elsewhere, scripts, and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.referred: list[str] = []
        self.scripts: list[str] = []
        self.labelled: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
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

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data

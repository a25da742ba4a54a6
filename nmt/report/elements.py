"""Elements of HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that scrolls where it is wider than the page.

    Args:
        caption: name of the table.
        head: heads of the columns.
        rows: cells of each row; the first is the head of the row. Numbers stand on the right.
    """
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(_row(row) for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def texts(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are sentences, in any direction of writing."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td dir="auto">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<table class="texts"><caption>{escape(caption)}</caption><thead>'
        f"<tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def section(name: str, title: str, *parts: str) -> str:
    """Return a section of the page with its title."""
    inner = "\n".join(parts)
    return (
        f'<section aria-labelledby="h-{name}">\n<h2 id="h-{name}">{escape(title)}</h2>\n'
        f"{inner}\n</section>"
    )


def heading(text: str) -> str:
    """Return the title of a part of a section."""
    return f"<h3>{escape(text)}</h3>"


def folded(title: str, *parts: str, is_open: bool = False) -> str:
    """Return parts that are shown, or hidden if they `is_open`, when their title is clicked."""
    inner = "\n".join(parts)
    return f"<details{' open' * is_open}><summary>{escape(title)}</summary>\n{inner}\n</details>"


def paragraph(text: str, kind: str = "hint") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>'


def number(value: object, digits: int = 0) -> str:
    """Return a number with separators of thousands; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def _row(cells: Sequence[object]) -> str:
    first, *others = cells
    shown = "".join(f"<td{_kind(cell)}>{escape(str(cell))}</td>" for cell in others)
    return f'<tr><th scope="row">{escape(str(first))}</th>{shown}</tr>'


def _kind(cell: object) -> str:
    """Return the class of a cell that holds a number."""
    text = str(cell).replace(",", "").replace("–", "0").replace(":", "")
    try:
        float(text)
    except ValueError:
        return ""
    return ' class="number"'


def titled(title: str, facts: str, sections: list[str]) -> str:
    """Return the body of a page: a heading, a line of facts, and sections of HTML."""
    header = f'<h1>{escape(title)}</h1>\n<p class="hint">{escape(facts)}</p>'
    return f"<header>\n{header}\n</header>\n<main>\n" + "\n".join(sections) + "\n</main>"

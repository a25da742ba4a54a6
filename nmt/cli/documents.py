"""Pages, pictures and JSON that commands write: to stdout, or to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from nmt.cli.translate.io import is_written_in_place, writer
from nmt.errors import NmtError

Kind = Literal["html", "svg", "png", "json"]

BEGINNINGS: dict[Kind, tuple[bytes, ...]] = {
    "html": (b"<!doctype html>",),
    "svg": (b"<?xml", b"<svg "),
    "png": (b"\x89PNG",),
    "json": (b"{",),
}
"""First bytes of the documents of each kind, by which an older document is recognised."""

FOREIGN = ("gif", "jpeg", "jpg", "pdf", "webp")
"""Endings of file names of kinds that no command writes."""


def check_kind(path: Path | None, kind: Kind) -> None:
    """Refuse a file name or an existing file of another kind; call before the work begins.

    Raises:
        NmtError: the name ends as another kind does; or the file exists and holds something else.
            An empty file may be replaced.
    """
    if path is not None and path.suffix[1:].lower() in {*BEGINNINGS, *FOREIGN} - {kind}:
        raise NmtError(f"{path}: the document is {kind.upper()}; give a name that ends in .{kind}")
    if path is None or not path.exists() or is_written_in_place(path):
        return
    with path.open("rb") as stream:
        beginning = stream.read(max(map(len, BEGINNINGS[kind])))
    if beginning and not beginning.startswith(BEGINNINGS[kind]):
        raise NmtError(
            f"{path}: exists and holds something else; remove it, or choose another file"
        )


def write_document(path: Path | None, content: bytes) -> None:
    """Write a document to stdout, or to a file that appears whole."""
    with writer(path, is_main=True) as stream:
        stream.write(content)

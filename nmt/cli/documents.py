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


def check_kind(path: Path | None, kind: Kind) -> None:
    """Refuse to write a document over a file of another kind; call before the work begins.

    Raises:
        NmtError: the file exists and holds something else; an empty file may be replaced.
    """
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

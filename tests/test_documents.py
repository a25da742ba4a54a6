"""JSON documents: what is read is what was written, and everything else costs one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.io.documents import MAX_BYTES, DocumentFormat, FileFacts, _checksum


@dataclass(frozen=True, kw_only=True)
class Shelf:
    name: str
    books: int
    share: float | None = None
    places: dict[str, FileFacts] = field(default_factory=dict)
    labels: tuple[tuple[str, ...], ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.books < 0:
            raise ValueError(f"books must be at least 0, not {self.books}")


SHELVES = DocumentFormat(kind=Shelf, name="nmt-shelf", version=3, remedy="build it again")
SHELF = Shelf(
    name="é",
    books=7,
    share=0.5,
    places={"a": FileFacts(bytes=1, sha256="0" * 64)},
    labels=(("x", "y"), ()),
    notes={"any": [1, None, {"thing": 2.0}]},
)


def changed(**values: object) -> str:
    """The document with other values, and the checksum of the changed document."""
    forged = json.loads(SHELVES.text(SHELF)) | values
    del forged["checksum"]
    return json.dumps(forged | {"checksum": _checksum(forged)})


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "shelf.json"
    path.write_text(SHELVES.text(SHELF), encoding="utf-8")
    assert SHELVES.read(path) == SHELF


def test_a_file_name_that_is_not_utf8_is_read_as_it_was_written(tmp_path: Path) -> None:
    shelf = Shelf(name=os.fsdecode(b"tr\xe4in\\"), books=7)
    (tmp_path / "shelf.json").write_text(SHELVES.text(shelf), encoding="utf-8")
    assert SHELVES.read(tmp_path / "shelf.json") == shelf


def test_any_flipped_bit_is_refused(tmp_path: Path) -> None:
    text = SHELVES.text(Shelf(name="name", books=7)).encode()
    for place in range(len(text)):
        for bit in range(8):
            damaged = bytearray(text)
            damaged[place] ^= 1 << bit
            if json.loads(text) != _loaded(bytes(damaged)):  # other white space says the same
                with pytest.raises(NmtError, match=r"^here: (damaged|format version \d+)"):
                    SHELVES.parse(bytes(damaged), "here")


def _loaded(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


@for_each(
    ("values", "problem"),
    {
        "NaN": ({"books": float("nan")}, "values.books: expected a whole number, not nan"),
        "infinity": ({"share": float("inf"), "books": 0.5}, "values.books: expected a whole"),
        "negative": ({"books": -1}, "values: books must be at least 0, not -1"),
        "a number as text": ({"books": "7"}, "values.books: a value is missing or of another"),
        "a fraction": ({"books": 7.0}, "values.books: a value is missing or of another type"),
        "text as a number": ({"name": 7}, "values.name: a value is missing or of another type"),
        "no list": ({"labels": "x"}, "values.labels: a value is missing or of another type"),
        "no mapping": ({"places": [1]}, r"values.places: expected keys and values, not \[1\]"),
        "an inner value": ({"places": {"a": {"bytes": 1}}}, "values.places.a: sha256 must be"),
        "no checksum": (
            {"places": {"a": {"bytes": 1, "sha256": "x"}}},
            "values.places.a: sha256 must be 64 hexadecimal digits",
        ),
        "a negative size": (
            {"places": {"a": {"bytes": -1, "sha256": "0" * 64}}},
            "values.places.a: bytes must be at least 0, not -1",
        ),
        "an unknown key": ({"bookz": 1}, "values: unknown key 'bookz'; did you mean 'books'"),
        "another format": ({"format": "nmt-run"}, "not a document of format nmt-shelf"),
        "a version that is no number": ({"version": True}, "not a document of format nmt-shelf"),
    }.values(),
)
def test_forged_values_cost_one_line(values: dict[str, object], problem: str) -> None:
    with pytest.raises(NmtError, match=f"^here: damaged: {problem}.*; build it again$"):
        SHELVES.parse(changed(**values), "here")


def test_a_missing_key_is_refused_also_where_it_has_a_default() -> None:
    document = json.loads(SHELVES.text(SHELF))
    del document["labels"]
    with pytest.raises(NmtError, match=r"values.labels: a value is missing"):
        SHELVES.parse(json.dumps(document), "here")


def test_a_key_that_was_added_later_may_be_missing_where_none_is_its_default() -> None:
    document = json.loads(SHELVES.text(SHELF))
    del document["share"], document["checksum"]
    text = json.dumps(document | {"checksum": _checksum(document)})
    assert SHELVES.parse(text, "here") == replace(SHELF, share=None)


def test_another_version_is_refused_with_both() -> None:
    with pytest.raises(NmtError, match=r"^here: format version 2, but this nmt reads version 3; b"):
        SHELVES.parse(changed(version=2), "here")


@for_each(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000, "", "null", "[]", '{"version": 3', b"\xff"],
)
def test_what_is_no_document_costs_one_line(text: str | bytes) -> None:
    with pytest.raises(NmtError, match=r"^here: damaged: .*; build it again$"):
        SHELVES.parse(text, "here")


def test_nesting_that_json_just_allows_is_refused_too() -> None:
    levels = 600 if sys.version_info < (3, 12) else 1500  # json has its own limit since 3.12
    deep: object = 1
    for _ in range(levels):
        deep = [deep]
    with pytest.raises(NmtError, match="damaged: nested too deeply"):
        SHELVES.parse(changed(notes={"deep": deep}), "here")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: _sparse(path, MAX_BYTES + 1), "16,777,217 bytes, but such a file has at"),
    ],
    ids=["pipe", "device", "large"],
)
def test_what_is_no_file_of_a_sensible_size_is_not_read(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "shelf.json")
    with pytest.raises(NmtError, match=f"shelf.json: {message}"):
        SHELVES.read(tmp_path / "shelf.json")


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)

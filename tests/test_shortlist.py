"""The file of a shortlist, and the lists of sentences."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from nmt.data import shortlist as module
from nmt.data.shortlist import Origin, Shortlist
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError

ORIGIN = Origin(
    subwords="s", data="d", target_vocabulary=12, shared_vocabulary=False, pairs=7, iterations=5
)
CANDIDATES = np.full((9, 2), EOS, np.int32)
CANDIDATES[4], CANDIDATES[5, 0] = (8, 11), 10
LIST = Shortlist(np.array([7], np.int32), CANDIDATES, ORIGIN)


def chosen(shortlist: Shortlist, *arguments: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in shortlist.chosen(*arguments)]


def test_a_list_holds_what_is_frequent_special_and_likely() -> None:
    sources = np.array([[4, 5, EOS], [5, EOS, 0], [6, EOS, 0]])
    always = [0, 1, 2, 3, 7]
    assert chosen(LIST, sources) == [[*always, 8, 10, 11], [*always, 10], always]


def test_a_list_holds_what_is_forced() -> None:
    sources, forced = np.array([[5, EOS], [6, EOS]]), np.array([[9, 6], [0, 0]])
    assert chosen(LIST, sources, forced) == [[0, 1, 2, 3, 6, 7, 9, 10], [0, 1, 2, 3, 7]]


def test_a_list_holds_the_source_where_the_vocabulary_is_shared() -> None:
    shared = Shortlist(LIST.frequent, CANDIDATES, replace(ORIGIN, shared_vocabulary=True))
    assert chosen(shared, np.array([[5, 6, EOS]])) == [[0, 1, 2, 3, 5, 6, 7, 10]]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    for name in ("one", "two"):
        LIST.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    loaded = Shortlist.load(tmp_path / "one")
    assert loaded.origin == ORIGIN
    assert loaded.frequent.tolist() == [7]
    assert loaded.candidates.tolist() == CANDIDATES.tolist()


def test_a_file_is_readable_for_others(tmp_path: Path) -> None:
    LIST.save(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NmtError, match="x: there is no shortlist; make it with `nmt shortlist`"):
        Shortlist.load(tmp_path / "x")


def test_any_other_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("something")
    with pytest.raises(NmtError, match="x: not a shortlist, or a damaged one; make it again with"):
        Shortlist.load(file)
    for metadata in ({}, {"description": json.dumps({"format": "y", "version": 2})}):
        save_file({"frequent": LIST.frequent}, file, metadata)
        with pytest.raises(NmtError, match=r"x: damaged: .*; make it again with"):
            Shortlist.load(file)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(NmtError, match="x: not a regular file"):
        Shortlist.load(tmp_path / "x")


@pytest.mark.parametrize(
    "forged",
    [
        replace(LIST, frequent=np.array([12], np.int32)),
        replace(LIST, frequent=np.array([-1], np.int32)),
        replace(LIST, frequent=np.array([7], np.int64)),
        replace(LIST, frequent=CANDIDATES),
        replace(LIST, candidates=LIST.frequent),
        replace(LIST, origin=replace(ORIGIN, target_vocabulary=11)),
    ],
    ids=["beyond", "negative", "int64", "a table", "a list", "a smaller vocabulary"],
)
def test_forged_tables_are_an_error(tmp_path: Path, forged: Shortlist) -> None:
    forged.save(tmp_path / "x")
    with pytest.raises(NmtError, match="x: damaged: not tables of target ids; make it again with"):
        Shortlist.load(tmp_path / "x")


def test_a_shortlist_of_other_sizes_is_known() -> None:
    assert LIST.is_of("s", 9, 12)
    assert not any((LIST.is_of("t", 9, 12), LIST.is_of("s", 8, 12), LIST.is_of("s", 9, 13)))


def test_a_changed_byte_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x"
    LIST.save(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(NmtError, match="x: damaged: its checksum does not match; make it again"):
        Shortlist.load(file)


def test_another_version_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DESCRIPTIONS", replace(module.DESCRIPTIONS, version=3))
    LIST.save(tmp_path / "x")
    monkeypatch.undo()
    with pytest.raises(NmtError, match="x: format version 3, but this nmt reads version 2; make"):
        Shortlist.load(tmp_path / "x")

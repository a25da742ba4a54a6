"""Files that appear whole or not at all, and are read without trusting them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import files_of_at_most

from nmt.errors import NmtError, explain
from nmt.io import documents, files

FAILURES = (ValueError, OSError, KeyboardInterrupt, SystemExit)


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_directory_appears_when_it_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "made" / "directory"
    with files.whole_directory(path) as partial:
        (partial / "a").write_text("a")
        assert not path.exists()
    assert everything(tmp_path) == ["made", "made/directory", "made/directory/a"]


def test_a_file_is_replaced_by_another_file_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with path.open() as reader:
        with files.whole_file(path) as partial:
            partial.write_text("new and longer")
        assert reader.read() == "old"  # renaming leaves the old file to its readers
    assert path.read_text() == "new and longer"


def test_a_directory_is_replaced_only_when_the_new_one_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    (path / "old").write_text("old")
    with files.whole_directory(path) as partial:
        (partial / "new").write_text("new")
        assert everything(path) == ["old"]
    assert everything(tmp_path) == ["directory", "directory/new"]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("exists", [False, True])
def test_of_a_directory_whose_filling_fails_nothing_remains(
    tmp_path: Path, failure: type[BaseException], exists: bool
) -> None:
    path = tmp_path / "directory"
    if exists:
        path.mkdir()
        (path / "old").write_text("old")
    before = everything(tmp_path)
    with pytest.raises(failure), files.whole_directory(path) as partial:  # noqa: PT012
        (partial / "new").write_text("new")
        raise failure
    assert everything(tmp_path) == before


def test_a_directory_that_cannot_be_put_in_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    (path / "old").write_text("old")
    rename = Path.rename

    def refuse_the_new_one(self: Path, target: Path) -> Path:
        if "partial" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new_one)
    with pytest.raises(OSError, match="Input/output"), files.whole_directory(path) as partial:
        (partial / "new").write_text("new")
    assert everything(tmp_path) == ["directory", "directory/old"]


def test_a_mount_point_is_refused_before_the_directory_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path)
    with pytest.raises(NmtError, match="a mount point, which cannot be replaced; choose a dir"):
        files.whole_directory(tmp_path).__enter__()
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))


def test_of_other_writings_of_a_directory_that_were_killed_only_what_they_replaced_remains(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data[1]"
    for left in (".data[1].partial-0abc", ".data[1].old-7", ".data1.partial-7"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "file").write_text(left)
    with files.whole_directory(path):
        assert (path / "file").read_text() == ".data[1].old-7"
    assert everything(tmp_path) == [".data1.partial-7", ".data1.partial-7/file", "data[1]"]


def test_a_file_is_replaced_only_when_the_new_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("first", "second"):
        before = path.read_text() if path.exists() else None
        with files.whole_file(path) as partial:
            partial.write_text(text)
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == text
    assert everything(tmp_path) == ["file"]


def test_of_other_writings_of_a_file_only_those_of_live_processes_remain(tmp_path: Path) -> None:
    path = tmp_path / "a[1]"
    for left in (".a[1].partial-7", ".a1.partial-7"):
        (tmp_path / left).touch()
    with (
        mock.patch("os.getpid", return_value=8),
        files.whole_file(path) as theirs,
        mock.patch("os.getpid", return_value=9),
        files.whole_file(path) as ours,
    ):
        assert everything(tmp_path) == [".a1.partial-7", theirs.name, ours.name]
    assert everything(tmp_path) == [".a1.partial-7", "a[1]"]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("exists", [False, True])
def test_of_a_file_whose_writing_fails_nothing_remains(
    tmp_path: Path, failure: type[BaseException], exists: bool
) -> None:
    path = tmp_path / "file"
    if exists:
        path.write_text("old")
    with pytest.raises(failure), files.whole_file(path) as partial:  # noqa: PT012
        partial.write_text("half of the ne")
        raise failure
    assert everything(tmp_path) == (["file"] if exists else [])
    assert not exists or path.read_text() == "old"


def test_a_link_is_moved_and_points_to_a_name_beside_it(tmp_path: Path) -> None:
    here = tmp_path / "here"
    for name in ("one", "two"):
        (here / name).mkdir(parents=True)
        files.point(here / "last", name)
        assert (here / "last").resolve() == here / name
    here.rename(tmp_path / "there")
    assert (tmp_path / "there" / "last").resolve() == tmp_path / "there" / "two"
    assert everything(tmp_path / "there") == ["last", "one", "two"]


def test_a_link_that_a_copy_has_made_a_directory_is_a_link_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    files.point(tmp_path / "last", "one")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "last", copy / "last")
    (copy / "last" / "file").write_text("x")
    files.point(copy / "last", "two")
    assert (copy / "last").readlink() == Path("two")
    assert everything(copy) == ["last"]


def test_a_kill_in_the_place_of_a_directory_by_a_link_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "file").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            files.point(tmp_path / "best", "two")
    files.sweep(tmp_path)
    assert everything(tmp_path) == ["best", "best/file"]


def test_what_a_killed_process_left_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".update_1.partial-7").mkdir()
    (tmp_path / ".update_1.partial-7" / "a").write_text("a")
    (tmp_path / ".update_1.old-7").mkdir()
    (tmp_path / ".run.json.partial-7").write_text("{")
    (tmp_path / ".last.new-7").symlink_to("update_1")
    (tmp_path / "update_1").mkdir()
    (tmp_path / "last").symlink_to("update_1")
    (tmp_path / ".gitignore").write_text("*")
    files.sweep(tmp_path)
    assert everything(tmp_path) == [".gitignore", "last", "update_1"]


def test_what_a_live_process_is_making_or_replacing_is_not_swept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "averaged"
    path.mkdir()
    (path / "old").write_text("old")
    rename = Path.rename

    def sweep_first(self: Path, target: Path) -> Path:
        files.sweep(tmp_path)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", sweep_first)
    with files.whole_directory(path) as partial:
        files.sweep(tmp_path)
        (partial / "new").write_text("new")
    assert everything(tmp_path) == ["averaged", "averaged/new"]


def test_the_checksum_is_sha_256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")  # the first example of FIPS 180-2
    assert documents.sha256(tmp_path / "file") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_a_file_is_read_where_it_is_as_expected(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"abc")
    link.symlink_to(path)
    for place in (path, link):
        assert (
            documents.read_checked(place, documents.FileFacts.from_file(path), "mend it") == b"abc"
        )
        documents.check(place, documents.FileFacts.from_file(path), "mend it")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("read", [documents.read_checked, documents.check])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "missing; mend it"),
        (lambda path: path.write_bytes(b"ab"), "2 bytes instead of 3; mend it"),
        (lambda path: path.write_bytes(b"abd"), "the content has changed since .*; mend it"),
        (_pipe, "not a regular file"),
        (_directory, "not a regular file"),
    ],
)
def test_a_file_that_is_not_as_expected_is_named(
    tmp_path: Path,
    read: Callable[[Path, documents.FileFacts, str], object],
    damage: Callable[[Path], object],
    message: str,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    facts = documents.FileFacts.from_file(path)
    damage(path)
    with pytest.raises(NmtError, match=f"file: {message}"):
        read(path, facts, "mend it")


def test_a_directory_is_never_seen_half_removed(tmp_path: Path) -> None:
    path = tmp_path / "update_0000002"
    path.mkdir()
    (path / "file").write_text("x")
    seen = []
    with mock.patch.object(shutil, "rmtree", side_effect=lambda left, **_: seen.append(left)):
        files.remove_directory(path)
    assert not path.exists()
    assert (seen[0] / "file").exists()
    files.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_which_a_reader_keeps_a_file_on_nfs_is_removed_later(tmp_path: Path) -> None:
    path = tmp_path / "update_0000002"
    path.mkdir()
    with mock.patch.object(os, "rmdir", side_effect=OSError(39, "Directory not empty")):
        files.remove_directory(path)
    assert not path.exists()
    files.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("whole", [files.whole_directory, files.whole_file])
def test_a_disk_that_is_full_only_when_it_is_synced_is_named(whole: Any, tmp_path: Path) -> None:
    path = tmp_path / "new"
    with (
        mock.patch.object(os, "fsync", side_effect=OSError(122, "Disk quota exceeded")),
        pytest.raises(OSError, match="Disk quota") as error,
        whole(path) as partial,
    ):
        (partial / "file" if whole is files.whole_directory else partial).touch()
    assert explain(error.value).startswith(f"{path}: cannot be written: Disk quota exceeded; ")


@pytest.mark.parametrize("whole", [files.whole_directory, files.whole_file])
def test_a_full_disk_is_named_as_the_user_knows_it(whole: Any, tmp_path: Path) -> None:
    path = tmp_path / "new"
    is_directory = whole is files.whole_directory
    with (
        files_of_at_most(100),
        pytest.raises(OSError, match="File too large") as error,
        whole(path) as partial,
    ):
        (partial / "file" if is_directory else partial).write_bytes(bytes(101))
    reason = "File too large; raise the limit of the size of a file (ulimit -f)"
    assert explain(error.value) == f"{path}: cannot be written: {reason}"


@pytest.mark.parametrize("whole", [files.whole_file, files.whole_directory])
def test_an_output_that_cannot_be_made_is_named_as_the_user_knows_it(whole: Any) -> None:
    path = Path("/proc/output")  # no user can make a file there
    with pytest.raises(OSError, match=r"'/proc/output'$"), whole(path) as partial:
        partial.write_text("text")


def test_an_error_that_a_library_tells_as_text_is_the_systems() -> None:
    told = files.os_error(Exception("I/O error: No space left on device (os error 28)"), Path("a"))
    assert explain(told) == "a: cannot be written: No space left on device; make room there"
    told = files.os_error(Exception("no tensors"), Path("a"))
    assert explain(told) == "a: cannot be written: no tensors"


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    files.check_writable(tmp_path)
    files.check_writable(tmp_path / "new" / "newer")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as refused:
        files.check_writable(tmp_path / "file" / "new")
    assert explain(refused.value) == f"{tmp_path / 'file'}: Not a directory; check the path"

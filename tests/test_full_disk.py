"""Commands on a full disk: one line with the user's name for the place, and nothing is lost."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import files_of_at_most
from trained_runs import turn

from nmt.errors import NmtError, UnfinishedError, explain
from nmt.io import files
from nmt.preprocess.cleaning import duplicates
from nmt.runs import checkpoint
from nmt.runs.locking import locked_for_training

Command = Callable[..., Any]

NO_SPACE = "No space left on device"
TOO_LARGE = "cannot be written: File too large; raise the limit of the size of a file (ulimit -f)"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def fill(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[Path], bool]) -> None:
    """Lets the disk be full for some files of tensors."""
    write = checkpoint.write_tensors

    def write_or_fail(path: Path, tensors: Any) -> Any:
        if is_full(path):
            raise OSError(errno.ENOSPC, NO_SPACE, str(path))
        return write(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", write_or_fail)


@pytest.mark.parametrize(
    ("is_in_preflight", "place"), [(True, "run"), (False, "run/update_0000002")]
)
def test_a_training_without_room_for_a_checkpoint_says_that_nothing_is_kept(
    is_in_preflight: bool,
    place: str,
    train: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(monkeypatch, lambda path: (".preflight" in str(path)) is is_in_preflight)
    done = train(tmp_path / "run", "--set", "train.log_every=1000")
    assert done.status == 1
    assert done.err.splitlines()[-1] == (
        f"nmt: error: {tmp_path / place}: cannot be written: {NO_SPACE}; make room there, and run "
        "the same command again to begin anew, as there is no checkpoint yet"
    )
    assert names(tmp_path) == []


def test_a_training_without_room_says_from_where_it_resumes(
    train: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names(run)
    fill(monkeypatch, lambda path: "update_0000008" in str(path))
    done = train(run, "--max-updates", 8)
    assert done.status == 1
    assert done.err.endswith(
        f"nmt: error: {run}/update_0000008: cannot be written: {NO_SPACE}; make room there, and "
        "run the same command again to resume after update 6\n"
    )
    assert names(run) == before
    monkeypatch.undo()
    assert train(run, "--max-updates", 8).status == 0


def test_a_directory_of_the_users_in_a_run_hides_no_full_disk(tmp_path: Path) -> None:
    for name in ("update_0000004", "update_best"):
        (tmp_path / name).mkdir()
    with (
        pytest.raises(UnfinishedError, match=r"to resume after update 4$"),
        locked_for_training(tmp_path, dry_run=False),
    ):
        raise OSError(errno.ENOSPC, NO_SPACE, str(tmp_path))


def test_a_trouble_of_training_that_is_not_the_disks_stays_what_it_is(
    train: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _: object) -> None:
        raise OSError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(checkpoint, "write_tensors", refuse)
    done = train(run, "--max-updates", 8)
    assert done.err.endswith("Permission denied; change its permissions, or choose another place\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_error_in_a_partial_file_names_what_the_user_knows(number: int) -> None:
    inner = "run/.preflight.partial-ab12/update_0/model.safetensors"
    with (
        pytest.raises(OSError, match="run") as error,
        files.named("run", Path("run/.preflight.partial-")),
    ):
        raise OSError(number, os.strerror(number), inner)
    assert error.value.filename == "run"


def test_a_link_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: str) -> None:
        raise OSError(errno.ENOSPC, NO_SPACE, target, None, str(self))

    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(OSError, match=NO_SPACE) as error:
        files.point(tmp_path / "last", "update_0000002")
    assert (
        explain(error.value) == f"{tmp_path}/last: cannot be written: {NO_SPACE}; make room there"
    )


@pytest.mark.parametrize("is_stdin", [False, True])
def test_a_dataset_without_room_is_named_and_resumed_if_its_text_can_be_read_again(
    is_stdin: bool, nmt: Command, corpus: Path, recipe: Path, tmp_path: Path
) -> None:
    pairs = zip((corpus / "train.en").open(), (corpus / "train.de").open(), strict=True)
    (tmp_path / "train.tsv").write_text("".join(f"{en.strip()}\t{de}" for en, de in pairs))
    text = ("--train", "-" if is_stdin else corpus / "train", "--valid", corpus / "valid")
    command = ("preprocess", "--config", recipe, *text, "--output-dir", tmp_path / "new")
    with files_of_at_most(100_000):
        done = nmt(*command, stdin=tmp_path / "train.tsv")
    resumes = "" if is_stdin else ", and run the same command again to resume"
    assert done.status == 1
    assert done.err.splitlines()[-1] == f"nmt: error: {tmp_path}/new: {TOO_LARGE}{resumes}"
    partial = [name for name in names(tmp_path) if name.startswith(".new.partial-")]
    assert len(partial) == (0 if is_stdin else 1)
    assert nmt(*command, stdin=tmp_path / "train.tsv").status == 0
    assert names(tmp_path) == ["new", "train.tsv"]


def test_lists_of_which_the_last_may_be_cut_are_not_kept(
    nmt: Command, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    command = ("translate", corpus / "train.en", "--model", trained, "--strategy", "beam")
    with files_of_at_most(3000):
        done = nmt(*command, "--n-best", 2, "--workers", 1, "--output", tmp_path / "out")
    assert done.err.splitlines()[-1] == f"nmt: error: {tmp_path}/out: {TOO_LARGE}"
    assert names(tmp_path) == []


@pytest.mark.parametrize("older", [(), ("out.unfinished",)])
def test_the_lines_translated_before_a_disk_was_full_are_kept(
    older: tuple[str, ...], nmt: Command, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    for name in ("out", *older):
        (tmp_path / name).write_text("mine\n")
    command = ("translate", corpus / "train.en", "--model", trained, "--workers", 1)
    whole = nmt(*command).out
    limit = len(whole.encode()) // 2
    with files_of_at_most(limit):
        done = nmt(*command, "--window", 8, "--output", tmp_path / "out")
    kept = tmp_path / ("out.unfinished-2" if older else "out.unfinished")
    lines = kept.read_text().splitlines(keepends=True)
    assert done.status == 1
    assert done.err.splitlines()[-2:] == [
        f"{kept} has the first {len(lines)} lines; translate the remaining lines",
        f"nmt: error: {tmp_path}/out: {TOO_LARGE}",
    ]
    assert lines == whole.splitlines(keepends=True)[: len(lines)]
    assert len("".join(lines).encode()) <= limit < len(whole.encode())
    assert names(tmp_path) == sorted(["out", *older, kept.name])
    assert {(tmp_path / name).read_text() for name in ("out", *older)} == {"mine\n"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "I/O error")])
def test_translations_that_cannot_be_completed_are_kept(
    error: Any, nmt: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(_: Path) -> None:
        raise error

    monkeypatch.setattr("nmt.io.files.sync", sync)
    output = tmp_path / "out"
    (tmp_path / "in").write_text("one two three\n")
    done = nmt("translate", tmp_path / "in", "--model", trained, "--output", output)
    assert done.status == (130 if error is KeyboardInterrupt else 1)
    assert f"{output}.unfinished has the first line; translate the remaining lines\n" in done.err
    assert names(tmp_path) == ["in", "out.unfinished"]
    assert (tmp_path / "out.unfinished").read_text().count("\n") == 1


def test_no_translation_leaves_no_file(
    nmt: Command, corpus: Path, trained: Path, tmp_path: Path
) -> None:
    command = ("translate", corpus / "test.en", "--model", trained, "--workers", 1)
    with files_of_at_most(1):
        done = nmt(*command, "--output", tmp_path / "out")
    assert done.err.endswith(f"nmt: error: {tmp_path}/out: {TOO_LARGE}\n")
    assert names(tmp_path) == []


def test_a_filter_without_room_for_scores_names_the_output_and_resumes(
    nmt: Command, corpus: Path, trained: Path, run: Path, tmp_path: Path
) -> None:
    turn(run)
    models = ("--forward", trained, "--reverse", run, "--keep", 0.5)
    command = ("filter", corpus / "train", *models, "--output", tmp_path / "kept")
    with files_of_at_most(100):
        done = nmt(*command)
    resumes = ", and run the same command again to resume"
    assert done.err.endswith(f"nmt: error: {tmp_path}/kept: {TOO_LARGE}{resumes}\n")
    assert nmt(*command).status == 0
    assert names(tmp_path) == ["kept", "run"]


def test_a_filter_without_room_for_temporary_files_names_their_directory(
    nmt: Command, corpus: Path, trained: Path, run: Path, tmp_path: Path
) -> None:
    turn(run)
    with files_of_at_most(100):
        done = nmt(
            "filter", corpus / "train", "--forward", trained, "--reverse", run, "--keep", 0.5
        )
    assert done.err.endswith(f"nmt: error: {tempfile.gettempdir()}: {TOO_LARGE}\n")


def test_an_export_without_room_costs_one_line(nmt: Command, trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "exported"
    with files_of_at_most(1000):
        done = nmt("export", "--model", trained, "--format", "huggingface", "--output", output)
    assert (done.status, done.err) == (1, f"nmt: error: {output}: {TOO_LARGE}\n")
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [100, 50_000])
def test_advice_without_room_for_temporary_files_names_their_directory(
    size: int, nmt: Command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with files_of_at_most(size):
        done = nmt("init", corpus / "train", "-s", "en", "-t", "de")
    assert done.status == 1
    assert done.err.endswith(f"nmt: error: {tempfile.gettempdir()}: {TOO_LARGE}\n")
    assert names(tmp_path) == []


def test_marks_have_their_room_before_they_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    (tmp_path / "zeros").write_bytes(bytes(size))
    if (tmp_path / "zeros").stat().st_blocks * 512 < size:
        pytest.skip("the file system stores no zeros")
    np.zeros((size, 2), "<u8").tofile(tmp_path / "keys")

    def check(path: Path) -> None:
        raise NmtError(str(os.stat(path).st_blocks * 512 >= size))

    monkeypatch.setattr(duplicates, "open_marks", check)
    with pytest.raises(NmtError, match="True"):
        duplicates.mark_repeated(tmp_path / "keys", tmp_path / "marks", tmp_path / "parts")

"""Which translations of the validation set a run keeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained_runs import assert_same_run

from nmt.errors import NmtError
from nmt.runs.translations import (
    kept_translations,
    read_translations,
    remove_translations,
    write_translations,
)


def test_the_newest_the_best_and_some_older_translations_stay(tmp_path: Path) -> None:
    lines = ["eins", "", "zwei\u2028drei"]
    for update in range(100, 1700, 100):
        write_translations(tmp_path, update, lines, best=min(update, 1200))
    # The first at or after 64, 128, 256, 512 and 1024, the best, and the newest.
    assert kept_translations(tmp_path) == [100, 200, 300, 600, 1100, 1200, 1600]
    assert read_translations(tmp_path, 600, 3) == lines
    write_translations(tmp_path, 1150, lines, best=1150)  # resumed after 1100
    assert kept_translations(tmp_path) == [100, 200, 300, 600, 1100, 1150]
    write_translations(tmp_path, 900, lines, best=200)  # resumed before 1100
    assert kept_translations(tmp_path) == [100, 200, 300, 600, 900]


def test_other_files_are_no_translations_and_half_written_ones_go(tmp_path: Path) -> None:
    directory = tmp_path / "validation"
    directory.mkdir()
    for name in ("update_final.txt", ".update_0000003.txt.partial-99"):
        (directory / name).write_text("eins\n")
    write_translations(tmp_path, 5, ["eins"], best=5)
    assert kept_translations(tmp_path) == [5]
    assert sorted(path.name for path in directory.iterdir()) == [
        "update_0000005.txt",
        "update_final.txt",
    ]


def test_damaged_translations_cost_a_line(tmp_path: Path) -> None:
    assert kept_translations(tmp_path) == []
    remove_translations(tmp_path)
    write_translations(tmp_path, 5, ["eins", "zwei"], best=5)
    path = tmp_path / "validation" / "update_0000005.txt"
    with pytest.raises(NmtError, match="damaged: 2 translations of 3 sentences; remove the file"):
        read_translations(tmp_path, 5, 3)
    with pytest.raises(NmtError, match="damaged: 2 translations of 1 sentences; remove the file"):
        read_translations(tmp_path, 5, 1)
    path.write_bytes(b"\xff\n")
    with pytest.raises(NmtError, match="damaged: not UTF-8; remove the file"):
        read_translations(tmp_path, 5, 1)
    remove_translations(tmp_path)
    assert kept_translations(tmp_path) == []


def test_a_training_keeps_its_translations_also_when_it_resumes(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    flags = ("--set", "train.valid_metrics=[chrf]")
    for name, stops in (("whole", [6]), ("resumed", [4, 6])):
        for last in stops:
            done = train(tmp_path / name, *flags, "--max-updates", last)
            assert done.status == 0, done.err
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")
    assert kept_translations(tmp_path / "whole") == [2, 4, 6]
    assert len(read_translations(tmp_path / "whole", 6, 20)) == 20

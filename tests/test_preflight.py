import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from nmt.data.format import Dataset
from nmt.training.preflight import longest_batch


def test_a_dry_run_tries_everything_says_what_it_takes_and_trains_nothing(
    train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = train(run, "--dry-run")
    assert done.status == 0
    for name in ("parameters", "target tokens per update", "updates per epoch", "disk", "about"):
        assert f"\n{name}" in done.err
    assert "training ended: dry run" in done.err
    assert not list(run.glob("update_*"))
    assert not list(run.glob(".*"))


def test_a_disk_too_small_for_the_checkpoints_is_an_error_before_the_first_update(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(100, 90, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    done = train(tmp_path / "run")
    assert done.status == 1
    assert "the checkpoints of --keep-last 5 need" in done.err
    assert "but 0.0 GB are free" in done.err


def test_the_longest_batch_holds_the_longest_pairs_that_fit(dataset: Path) -> None:
    split = Dataset.open(dataset).split("train")
    longer = np.maximum(split.source_lengths, split.target_lengths)
    batch = longest_batch(split, max_tokens=3 * int(longer.max()))
    assert len(batch.source) == 3
    assert max(batch.source.shape[1], batch.target_output.shape[1]) == longer.max()
    assert len(longest_batch(split, max_tokens=1).source) == 1
    assert len(longest_batch(split, max_tokens=10**9).source) == len(split)

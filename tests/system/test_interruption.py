"""Real processes that are stopped, and the same command again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from trained_runs import assert_same_checkpoint, last_update, records

from nmt.runs import Checkpoint

pytestmark = pytest.mark.full

REPEATABLE = "nmt: error: interrupted; run the same command again"

SIGNALS = (signal.SIGINT, signal.SIGTERM)

UPDATES = 250
OPTIONS = (
    *("--max-updates", UPDATES, "--save-every", 17, "--valid-every", 90),
    *("--set", "train.log_every=3", "--set", "train.valid_metrics=[]"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, train: Any) -> Path:
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert train(run, *OPTIONS).status == 0
    return run


@contextmanager
def training(run: Path, recipe: Path, dataset: Path) -> Iterator[subprocess.Popen[str]]:
    places = ("--config", recipe, "--data", dataset, "--save-dir", run)
    command = [sys.executable, "-m", "nmt", "train", *places, *OPTIONS]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(run: Path, update: int, process: subprocess.Popen[str]) -> None:
    """Returns when the log says that an update is done."""
    while last_update(run) < update:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def test_signals_save_and_exit_and_the_same_command_ends_as_if_nothing_had_been(
    train: Any, whole: Path, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped_at = 0
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with training(run, recipe, dataset) as process:
            wait_for(run, stopped_at + 10, process)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        assert process.returncode == status, err
        assert f"resumed after update {stopped_at}" in err or not stopped_at
        stopped_at = Checkpoint.open(run / "last").update
        assert err.endswith(
            f"training ended: interrupted by {number.name}; all is saved after update "
            f"{stopped_at}, and the same command resumes there\n"
        )
        assert 10 <= stopped_at < UPDATES
    assert train(run, *OPTIONS).status == 0
    assert records(run) == records(whole)
    assert_same_checkpoint(run / "last", whole / "last")


@contextmanager
def command(*arguments: object, **pipes: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # It is ignored in what a shell starts in the background, as these tests may have been.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        **pipes,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_dry_run_which_leaves_nothing(
    recipe: Path, dataset: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    large = ("--set", "model.d_model=1024", "--set", "model.d_ff=16384", "--max-tokens", 4096)
    places = ("--config", recipe, "--data", dataset, "--save-dir", run)
    with command("train", "--dry-run", *places, *large) as process:
        while not (run / "run.json").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert err.splitlines()[-1] == "nmt: error: interrupted"
    assert not run.exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_translation_and_its_workers_at_once(
    trained: Path, tmp_path: Path, number: signal.Signals
) -> None:
    orders = permutations(["one", "two", "three", "four", "five", "six"])
    (tmp_path / "in.txt").write_text("".join(f"{' '.join(order)}\n" for order in orders))
    no_end = "search.constraints=[{name: min_length, length: 1000000}]"
    endless = ("--max-length-offset", 1_000_000, "--set", no_end)
    places = (tmp_path / "in.txt", "--model", trained, "--output", tmp_path / "out.txt")
    with command("translate", *places, *endless, "--workers", 2) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(workers := children.read_text().split()) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(0.5)  # they are at work, and would be for hours
        os.killpg(process.pid, number)  # as a terminal and `timeout` send them
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "nmt: error: interrupted\n")
    assert os.listdir(tmp_path) == ["in.txt"]
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.parametrize("number", SIGNALS)
def test_lines_that_were_translated_before_a_signal_are_kept(
    trained: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output, kept = tmp_path / "out.txt", tmp_path / "out.txt.unfinished"
    places = ("--model", trained, "--output", output, "--workers", 1)
    with command("translate", *places, stdin=subprocess.PIPE) as process:
        process.stdin.write("one two three\n\none two\n")
        process.stdin.flush()
        while not any(path.stat().st_size for path in tmp_path.glob(".out.txt.*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    said = f"{kept} has the first 3 lines; translate the remaining lines\nnmt: error: interrupted\n"
    assert (process.returncode, err) == (128 + number, said)
    assert os.listdir(tmp_path) == [kept.name]
    first, second, third = kept.read_text().split("\n")[:-1]
    assert [bool(line) for line in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupted_preprocess_says_how_to_go_on(
    corpus: Path, tmp_path: Path, number: signal.Signals
) -> None:
    languages = ("--source-lang", "en", "--target-lang", "de", "--train", "-")
    places = ("--valid", corpus / "valid", "--output-dir", tmp_path / "data-bin")
    with command("preprocess", *languages, *places, stdin=subprocess.PIPE) as process:
        while not list(tmp_path.glob(".data-bin.*/*/stdin.tsv")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, f"{REPEATABLE} to resume\n")


def test_a_training_that_is_interrupted_before_it_begins_says_so(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nmt.training.run.open_run", interrupted)
    done = train(tmp_path / "run")
    assert done.status == 130
    assert done.err == f"{REPEATABLE}, which resumes from the last checkpoint, if there is one\n"
    done = train(tmp_path / "run", "--dry-run")  # which saves none
    assert (done.status, done.err) == (130, "nmt: error: interrupted\n")

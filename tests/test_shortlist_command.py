"""``nmt shortlist``, and translating with what it made."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command, files_of_at_most

import nmt as package
from nmt.data.shortlist import Shortlist


@pytest.fixture
def listed(run: Path, dataset: Path, nmt: Command) -> Path:
    """A run with a shortlist of one translation for each token, and a frequent one."""
    done = nmt("shortlist", "--data", dataset, "--model", run, "--first", 1, "--best", 1)
    assert done.status == 0, done.err
    assert done.out == f"{run / 'shortlist.safetensors'}\n"
    assert done.err.startswith("read 200 pairs; valid: lists of ")
    return run


def translated(nmt: Command, run: Path, corpus: Path, *flags: object) -> str:
    done = nmt("translate", "--model", run, *flags, corpus / "test.en")
    assert done.status == 0, done.err
    return str(done.out)


def test_a_list_of_everything_changes_no_translation(
    run: Path, dataset: Path, corpus: Path, nmt: Command
) -> None:
    done = nmt("shortlist", "--data", dataset, "--model", run, "--first", 60)
    assert "lists of 60 of 60 tokens on average, with 100.0% of the references' tokens" in done.err
    for strategy in ("greedy", "beam"):
        flags = ("--strategy", strategy, "--n-best", 1, "--engine", "nmt")
        whole = translated(nmt, run, corpus, *flags)
        assert translated(nmt, run, corpus, *flags, "--shortlist") == whole


def test_a_run_alone_translates_with_its_list(
    listed: Path, corpus: Path, tmp_path: Path, nmt: Command
) -> None:
    moved = shutil.move(listed, tmp_path / "moved")
    whole = translated(nmt, moved, corpus, "--json", "--engine", "nmt")
    few = translated(nmt, moved, corpus, "--json", "--shortlist", "--workers", 1)
    assert len(few.splitlines()) == 10
    assert few != whole
    lines = (corpus / "test.en").read_text().splitlines()
    by_api = package.Translator(moved, device="cpu", shortlist=True, strategy="greedy")
    assert (
        list(by_api.translate(lines)) == translated(nmt, moved, corpus, "--shortlist").splitlines()
    )


def test_an_average_takes_the_list_along(listed: Path, tmp_path: Path, nmt: Command) -> None:
    output = tmp_path / "averaged"
    nmt("average-checkpoints", "--run", listed, "--last", 2, "--output", output)
    name = "shortlist.safetensors"
    assert (output / name).read_bytes() == (listed / name).read_bytes()


def test_a_run_without_a_list_is_an_error(run: Path, corpus: Path, nmt: Command) -> None:
    done = nmt("translate", "--shortlist", "--model", run, corpus / "test.en")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: {run}: the run has no shortlist; make one with "
        f"`nmt shortlist --model {run}`\n"
    )


def other_dataset(corpus: Path, recipe: Path, tmp_path: Path, nmt: Command) -> Path:
    """The same text, cut into other subwords."""
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid")]
    directory = tmp_path / "other-bin"
    flags = ("--config", recipe, "--vocab-size", 50, "--output-dir", directory)
    assert nmt("preprocess", *prefixes, *flags).status == 0
    return directory


def test_a_dataset_of_other_subwords_is_an_error(
    run: Path, corpus: Path, recipe: Path, tmp_path: Path, nmt: Command
) -> None:
    other = other_dataset(corpus, recipe, tmp_path, nmt)
    done = nmt("shortlist", "--data", other, "--model", run)
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: {other}: its subwords differ from the subwords of {run}; "
        "give the run's own dataset\n"
    )
    assert not (run / "shortlist.safetensors").exists()


def test_a_list_of_other_subwords_is_an_error(
    listed: Path, corpus: Path, dataset: Path, tmp_path: Path, nmt: Command
) -> None:
    file = listed / "shortlist.safetensors"
    of_others = Shortlist.load(file)
    replace(of_others, origin=replace(of_others.origin, subwords="others")).save(file)
    done = nmt("translate", "--shortlist", "--model", listed, corpus / "test.en")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: {file}: made for other subwords than the run's; make it again with "
        f"`nmt shortlist --model {listed}`\n"
    )


def test_what_is_no_run_is_an_error(tmp_path: Path, dataset: Path, nmt: Command) -> None:
    done = nmt("shortlist", "--data", dataset, "--model", tmp_path)
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: {tmp_path}: not a run; give the directory of a run with --model\n"
    )


def test_a_run_that_cannot_be_written_is_an_error(run: Path, dataset: Path, nmt: Command) -> None:
    before = sorted(run.iterdir())
    with files_of_at_most(100):
        done = nmt("shortlist", "--data", dataset, "--model", run)
    assert (done.status, done.out) == (1, "")
    start = f"nmt: error: {run / 'shortlist.safetensors'}: cannot be written: "
    assert done.err.startswith(start)
    assert done.err.endswith("; raise the limit of the size of a file (ulimit -f)\n")
    assert done.err.count("\n") == 1
    assert sorted(run.iterdir()) == before

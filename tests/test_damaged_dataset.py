"""Datasets that are damaged, forged or overwritten: one line that names the file, never more."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from fuzz.seals import seal
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data import columns
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.vocabulary import EOS
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError

REMEDY = "make the dataset again with `nmt preprocess`"
SOURCES, TARGETS = [[5, 6, 7], [4], [9, 9]], [[8], [9, 4], []]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset with three pairs in each split; 10 source ids, 20 target ids."""
    return write(tmp_path / "data", SOURCES, TARGETS)


def write(path: Path, sources: list[list[int]], targets: list[list[int]]) -> Path:
    with staging(path) as directory:
        writer = DatasetWriter(directory, ("en", "de"), (10, 20))
        for name in ("train", "valid"):
            with writer.split(name) as split:
                split.append(
                    RaggedArray.from_sentences(sources), RaggedArray.from_sentences(targets)
                )
                if name == "valid":
                    split.append_text(["a", "b", "c"], ["x", "y", "z"])
        writer.finish(shared_vocabulary=False, recipe={})
    return path


def forge(path: Path, **values: Any) -> None:
    """Other values in the manifest, with checksums that fit them."""
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **values}))
    seal(manifest)


def forge_array(path: Path, name: str, values: list[int], dtype: str) -> None:
    """Other numbers in a file, with checksums that fit them."""
    (path / name).write_bytes(np.array(values, dtype).tobytes())
    seal(path / name)


def test_what_was_written_passes_every_check(data: Path) -> None:
    dataset = Dataset.open(data)
    dataset.verify()
    for name in ("train", "valid"):
        dataset.split(name).check()


@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=9), at_once=st.integers(1, 12))
def test_files_are_checked_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], at_once: int
) -> None:
    sentences = [[4] * length for length in lengths]
    path = write(tmp_path_factory.mktemp("pieces") / "data", sentences, sentences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "CHECKED_AT_ONCE", at_once)
        Dataset.open(path).split("train").check()
        ids = np.fromfile(path / "train.en.tokens", "<u2")
        ids[-1] = 4
        forge_array(path, "train.en.tokens", ids.tolist(), "<u2")
        with pytest.raises(NmtError, match=r"train.en.tokens: damaged: a sentence does not end"):
            Dataset.open(path).split("train").check()


FACTS = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("values", "problem"),
    {
        "a path out": ({"files": {"../../dev/zero": FACTS}}, "'../../dev/zero' is not the name"),
        "an absolute path": ({"files": {"/dev/zero": FACTS}}, "'/dev/zero' is not the name of a"),
        "an inner path": ({"files": {"a/b": FACTS}}, "'a/b' is not the name of a file of a data"),
        "an escape": ({"files": {"\x1b[31m": FACTS}}, r"'\x1b[31m' is not the name of a file"),
        "no files": ({"files": {}}, "train.en.tokens is missing among its files"),
        "files as a list": ({"files": ["a"]}, "values.files: expected keys and values, not ['a']"),
        "a negative size": (
            {"files": {"a": {**FACTS, "bytes": -1}}},
            "values.files.a: bytes must be at least 0, not -1",
        ),
        "a language with a path": (
            {"source_lang": "../x"},
            "values: source_lang must be the end of a file's name, such as en, not '../x'",
        ),
        "one language twice": ({"source_lang": "de"}, "values: source_lang and target_lang are"),
        "objects as ids": ({"source_dtype": "O"}, "values.source_dtype: unknown value 'O'; known"),
        "wide ids": ({"source_dtype": "<i4"}, "values: source_dtype: ids of 10 pieces are not"),
        "no vocabulary": ({"source_vocabulary": 3}, "values: source_vocabulary must be from 4"),
        "a huge vocabulary": ({"source_vocabulary": 2**40}, "values: source_vocabulary must be f"),
        "one shared vocabulary": ({"shared_vocabulary": True}, "values: one shared vocabulary has"),
        "an unknown split": ({"splits": {"dev": {}}}, "values.splits.dev: pairs, source_tokens, "),
        "splits by number": ({"splits": [1, 2]}, "values.splits: expected keys and values, not "),
        "a shard as a list": ({"shard": [1, 2]}, "values.shard: expected text, not [1, 2]"),
    }.values(),
)
def test_forged_values_of_a_manifest_cost_one_line(
    data: Path, values: dict[str, Any], problem: str
) -> None:
    forge(data, **values)
    with pytest.raises(NmtError) as error:
        Dataset.open(data)
    assert str(error.value).startswith(f"{data}/manifest.json: damaged: {problem}")
    assert str(error.value).endswith(f"; {REMEDY}")


@pytest.mark.parametrize(
    ("counts", "problem"),
    {
        "negative": ({"pairs": -1}, "values.splits.train: pairs must be at least 0, not -1"),
        "NaN": ({"pairs": float("nan")}, "values.splits.train.pairs: expected a whole number"),
        "absurd": ({"pairs": 10**18}, "values.splits.train: 1000000000000000000 pairs do not hold"),
        "other sentences": ({"pairs": 4}, "train.en.offsets: 32 bytes instead of 40"),
        "other tokens": ({"source_tokens": 8}, "train.en.tokens: 18 bytes instead of 16"),
        "unknown": ({"source_unknown": 99}, "values.splits.train: 3 pairs do not hold 9 tokens, 9"),
        "dropped": ({"dropped": {"empty": -2}}, "values.splits.train: empty must be at least 0"),
        "three sides": (
            {"examples": {"empty": [["a", "b", "c"]]}},
            "values.splits.train.examples.empty: expected 2 values, not 3",
        ),
    }.values(),
)
def test_forged_counts_of_a_split_cost_one_line(
    data: Path, counts: dict[str, Any], problem: str
) -> None:
    splits = json.loads((data / "manifest.json").read_text())["splits"]
    splits["train"] |= counts
    forge(data, splits=splits)
    with pytest.raises(NmtError) as error:
        Dataset.open(data)
    assert str(error.value).startswith(f"{data}/manifest.json: damaged: {problem}")


def test_a_split_of_another_name_is_refused(data: Path) -> None:
    splits = json.loads((data / "manifest.json").read_text())["splits"]
    forge(data, splits={**splits, "dev": splits["valid"]})
    with pytest.raises(NmtError, match=r"splits must be some of train, valid, test, with train"):
        Dataset.open(data)


def test_a_fingerprint_is_that_of_the_files(data: Path) -> None:
    text = (data / "manifest.json").read_text()
    shown = json.loads(text)["fingerprint"]
    forge(data)
    assert json.loads((data / "manifest.json").read_text())["fingerprint"] == shown
    (data / "manifest.json").write_text(text.replace(shown, "0" * 64))
    with pytest.raises(NmtError, match=r"manifest.json: damaged: its checksum does not match"):
        Dataset.open(data)


def _replace(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


@pytest.mark.parametrize("name", ["manifest.json", "train.en.tokens", "valid.de"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_what_is_no_file_is_neither_read_nor_waited_for(
    data: Path, name: str, make: Callable[[Path], object]
) -> None:
    _replace(make)(data / name)
    with pytest.raises(NmtError, match=f"{name}: not a regular file; put the file itself there"):
        Dataset.open(data)


def test_links_to_files_are_followed(data: Path, tmp_path: Path) -> None:
    moved = data.rename(tmp_path / "moved")
    data.mkdir()
    for file in moved.iterdir():
        (data / file.name).symlink_to(file)
    dataset = Dataset.open(data)
    dataset.verify()
    dataset.split("train").check()


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("train.en.tokens", [5, 6, 7, 3, 10, 3, 9, 9, 3], "a token id is not below 10"),
        ("train.en.tokens", [5, 0, 7, 3, 4, 3, 9, 9, 3], "a sentence holds padding"),
        ("train.en.tokens", [5, 6, 7, 3, 4, 3, 9, 9, 9], "a sentence does not end with the end"),
        ("train.en.offsets", [1, 4, 6, 9], "the first sentence does not start at 0"),
        ("train.en.offsets", [0, 6, 4, 9], "a sentence is empty or outside of its file"),
        ("train.en.offsets", [0, 4, 4, 9], "a sentence is empty or outside of its file"),
        ("train.en.offsets", [0, 4, 6, 10], "a sentence is empty or outside of its file"),
        ("train.en.offsets", [0, 4, 6, 2**40], "a sentence is empty or outside of its file"),
        ("train.en.offsets", [0, 2**63 - 1, -(2**63), 9], "a sentence is empty or outside of its"),
        ("train.en.offsets", [0, 1, 4, 6], "sentences end at token 6 of 9"),
    ],
)
def test_numbers_that_no_writer_has_written_are_found_before_training(
    data: Path, name: str, values: list[int], problem: str
) -> None:
    if problem.startswith("sentences end"):
        forge_array(data, "train.en.tokens", [3, 5, 6, 3, 7, 3, 9, 9, 3], "<u2")
    forge_array(data, name, values, "<u2" if name.endswith("tokens") else "<i8")
    with pytest.raises(NmtError) as error:
        Dataset.open(data).split("train").check()
    assert str(error.value).startswith(f"{data}/{name}: damaged: {problem}")
    assert str(error.value).endswith(f"; {REMEDY}")


def test_a_flipped_bit_is_found_before_training_also_where_the_ids_make_sense(data: Path) -> None:
    file = data / "valid.de.tokens"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    Dataset.open(data).split("train").check()
    with pytest.raises(NmtError, match=r"valid.de.tokens: the content has changed since it was"):
        Dataset.open(data).split("valid").check()


def test_a_split_without_pairs_is_found_before_training(tmp_path: Path) -> None:
    path = write(tmp_path / "none", [], [])
    with pytest.raises(NmtError, match=f"none: train holds no pair; {REMEDY}"):
        Dataset.open(path).split("train").check()


@pytest.mark.parametrize("offsets", [[0, 2**40, 6, 9], [0, -4, 6, 9], [0, 0, 6, 9]])
def test_offsets_are_checked_by_whoever_reads_without_that(data: Path, offsets: list[int]) -> None:
    forge_array(data, "train.en.offsets", offsets, "<i8")
    train = Dataset.open(data).split("train")
    for read in (
        lambda: train.source(0),
        lambda: train.padded("source", np.arange(3)),
        lambda: train.sampled_lengths("source", 3),
    ):
        with pytest.raises(NmtError, match=r"train.en.offsets: damaged: a sentence is empty or"):
            read()


def test_ids_are_checked_by_whoever_reads_without_that(data: Path) -> None:
    forge_array(data, "train.en.tokens", [5, 65535, 7, 3, 4, 3, 9, 9, 3], "<u2")
    train = Dataset.open(data).split("train")
    assert train.source(1).tolist() == [4, EOS]
    for read in (lambda: train.source(0), lambda: train.padded("source", np.arange(3))):
        with pytest.raises(NmtError, match=r"train.en.tokens: damaged: a token id is not below 10"):
            read()


@pytest.mark.parametrize("name", ["train.en.tokens", "train.en.offsets"])
def test_a_file_that_is_cut_while_it_is_open_costs_one_line(data: Path, name: str) -> None:
    train = Dataset.open(data).split("train")
    os.truncate(data / name, 8)
    for read in (
        lambda: train.source(2),
        lambda: train.padded("source", np.arange(3)),
    ):
        with pytest.raises(NmtError, match=f"{name}: damaged: has been cut since it was opened"):
            read()
    with pytest.raises(NmtError, match=f"{name}: 8 bytes instead of"):
        train.check()


def test_a_file_of_which_too_little_is_read_does_not_pass(data: Path) -> None:
    mapped = columns.MappedFile(
        data / "train.en.tokens", Dataset.open(data).manifest.files["train.en.tokens"], "<u2"
    )
    with (
        pytest.raises(NmtError, match=r"train.en.tokens: the content has changed"),
        mapped.reader() as read,
    ):
        assert len(read(4)) == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"x\ny\n", "2 lines for 3 pairs"), (b"x\ny\n\xff\n", "not UTF-8")],
)
def test_forged_text_costs_one_line(data: Path, content: bytes, problem: str) -> None:
    (data / "valid.de").write_bytes(content)
    seal(data / "valid.de")
    with pytest.raises(NmtError, match=rf"valid.de: {problem}; {REMEDY}$"):
        Dataset.open(data).split("valid").reference_text()


def test_changed_text_is_not_scored_against(data: Path) -> None:
    (data / "valid.de").write_bytes(b"x\nq\nz\n")
    with pytest.raises(NmtError, match=r"valid.de: the content has changed since it was written"):
        Dataset.open(data).split("valid").reference_text()


def test_any_number_of_shards_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "data" / f"shard-1-of-{10**12}").mkdir(parents=True)
    with pytest.raises(NmtError, match=r"shard-2-of-1000000000000: missing; make it with"):
        Dataset.open(tmp_path / "data")


@pytest.fixture
def damaged(tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the trained run's dataset, to be damaged, in the current directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(dataset, tmp_path / "data-bin"))


@pytest.mark.parametrize("command", ["train", "inspect", "shortlist", "preprocess"])
def test_commands_refuse_changed_subwords(
    damaged: Path, trained: Path, recipe: Path, corpus: Path, nmt: Command, command: str
) -> None:
    model = damaged / "subwords.model"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    done = _run(nmt, command, trained, recipe, corpus)
    expected = (
        rf"nmt: error: (\S*/)?data-bin/subwords.model: the content has changed .*; {REMEDY}\n"
    )
    assert re.search(rf"(^|\n){expected}$", done.err)
    assert done.status == 1


@pytest.mark.parametrize("command", ["train", "inspect", "shortlist"])
def test_commands_refuse_ids_out_of_range(
    damaged: Path, trained: Path, recipe: Path, corpus: Path, nmt: Command, command: str
) -> None:
    ids = np.fromfile(damaged / "train.en.tokens", "<u2")
    ids[0] = 60_000
    forge_array(damaged, "train.en.tokens", ids.tolist(), "<u2")
    done = _run(nmt, command, trained, recipe, corpus)
    assert done.status == 1
    assert re.search(
        r"(^|\n)nmt: error: data-bin/train.en.tokens: damaged: a token id is not below 60; .*\n$",
        done.err,
    )


def _run(nmt: Command, command: str, trained: Path, recipe: Path, corpus: Path) -> Any:
    if command == "train":
        return nmt("train", "--config", recipe, "--data", "data-bin", "--save-dir", "fresh")
    if command == "shortlist":
        return nmt("shortlist", "--data", "data-bin", "--model", trained)
    if command == "inspect":
        return nmt("inspect", "data-bin")
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid")]
    places = ("--subword-model", "data-bin", "--output-dir", "fresh")
    return nmt("preprocess", "--config", recipe, *prefixes, *places)


def test_a_language_with_a_path_is_refused_before_anything_is_read(nmt: Command) -> None:
    done = nmt("preprocess", "--source-lang", "../x", "--target-lang", "de", "--train", "t")
    assert done.status == 1
    assert "source_lang must be the end of a file's name, such as en, not '../x'" in done.err

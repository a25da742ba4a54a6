import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError

PAIRS = [([5, 6, 7], [8]), ([UNK], [9, 4]), ([], [5])]


def write(path: Path, pairs=PAIRS, vocabularies=(10, 20), text=None):
    """A dataset with the pairs as its training split, and the text as its validation split."""
    with staging(path) as directory:
        writer = DatasetWriter(directory, ("en", "de"), vocabularies)
        with writer.split("train") as split:
            for source, target in pairs:  # one by one, as chunks would come
                split.append(
                    RaggedArray.from_sentences([source]), RaggedArray.from_sentences([target])
                )
            split.dropped["empty"] = 2
        if text:
            with writer.split("valid") as split:
                none = RaggedArray.from_sentences([[] for _ in text])
                split.append(none, none)
                split.append_text(text, text)
        writer.finish(shared_vocabulary=False, recipe={"vocab_size": 20})
    return Dataset.open(path)


def test_the_special_ids_are_those_of_the_format():
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)


def test_sentences_are_read_as_they_were_written_each_with_its_eos(tmp_path):
    train = write(tmp_path / "data").split("train")
    assert len(train) == 3
    assert train.source(0).tolist() == [5, 6, 7, EOS]
    assert train.target(1).tolist() == [9, 4, EOS]
    assert train.source(2).tolist() == [EOS]
    assert train.source_lengths.tolist() == [4, 2, 1]
    assert train.target_lengths.tolist() == [2, 3, 2]


def test_the_manifest_says_what_the_dataset_holds(tmp_path):
    manifest = write(tmp_path / "data").manifest
    train = manifest.splits["train"]
    assert (train.pairs, train.source_tokens, train.target_tokens) == (3, 7, 7)
    assert (train.source_unknown, train.target_unknown) == (1, 0)
    assert train.dropped == {"empty": 2}
    assert (manifest.source_lang, manifest.target_lang) == ("en", "de")
    assert (manifest.source_vocabulary, manifest.target_vocabulary) == (10, 20)
    assert not manifest.shared_vocabulary
    assert manifest.recipe == {"vocab_size": 20}


ids = st.lists(st.integers(4, 99_999), max_size=5)
pairs = st.lists(st.tuples(ids, ids), max_size=8)


@settings(max_examples=30)
@given(pairs=pairs, data=st.data())
def test_writing_and_reading_give_the_same_ids(tmp_path_factory, pairs, data):
    path = tmp_path_factory.mktemp("round-trip") / "data"
    train = write(path, pairs, (100_000, 100_000)).split("train")
    assert [train.source(i).tolist() for i in range(len(train))] == [[*s, EOS] for s, _ in pairs]
    assert [train.target(i).tolist() for i in range(len(train))] == [[*t, EOS] for _, t in pairs]

    chosen = data.draw(st.lists(st.integers(0, max(0, len(pairs) - 1)))) if pairs else []
    rows = train.padded("source", np.array(chosen, dtype=np.int64))
    width = max((len(pairs[i][0]) + 1 for i in chosen), default=0)
    assert rows.dtype == np.int64
    assert rows.shape == (len(chosen), width)
    for row, i in zip(rows.tolist(), chosen, strict=True):
        sentence = [*pairs[i][0], EOS]
        assert row == sentence + [PAD] * (width - len(sentence))


@settings(max_examples=30)
@given(sentences=st.lists(ids, min_size=1), data=st.data())
def test_sentences_that_are_kept_are_those_chosen(sentences, data):
    length = len(sentences)
    chosen = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    kept = RaggedArray.from_sentences(sentences).keep(np.array(chosen))
    expected = RaggedArray.from_sentences(
        [it for it, keep in zip(sentences, chosen, strict=True) if keep]
    )
    assert kept.tokens.tolist() == expected.tokens.tolist()
    assert kept.lengths.tolist() == expected.lengths.tolist()


@pytest.mark.parametrize(("size", "dtype", "bytes_each"), [(65536, "<u2", 2), (65537, "<i4", 4)])
def test_ids_take_two_bytes_as_long_as_the_vocabulary_allows(tmp_path, size, dtype, bytes_each):
    dataset = write(tmp_path / "data", [([size - 1], [5])], (size, 20))
    assert dataset.manifest.source_dtype == dtype
    assert (tmp_path / "data" / "train.en.tokens").stat().st_size == 2 * bytes_each
    assert dataset.split("train").source(0).tolist() == [size - 1, EOS]


def test_held_out_text_is_read_as_it_was_given(tmp_path):
    text = ["a\u2028b\x85c\rd\x00", "", "  ⟨é⟩ "]
    valid = write(tmp_path / "data", text=text).split("valid")
    assert valid.source_text() == valid.reference_text() == text


def test_training_pairs_keep_no_text(tmp_path):
    with pytest.raises(ValueError, match="'train' keeps no text"):
        write(tmp_path / "data").split("train").source_text()


def test_a_pair_that_is_not_there_is_an_index_error(tmp_path):
    train = write(tmp_path / "data").split("train")
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"pair {index} of 3"):
            train.source(index)


def test_sides_of_different_length_are_refused(tmp_path):
    writer = DatasetWriter(tmp_path, ("en", "de"), (10, 10))
    with (
        pytest.raises(ValueError, match="2 source, 1 target"),
        writer.split("train") as split,
    ):
        split.append(RaggedArray.from_sentences([[5], [6]]), RaggedArray.from_sentences([[5]]))


def test_a_split_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    dataset = write(tmp_path / "data", text=["a"])
    assert dataset.has_split("valid")
    assert not dataset.has_split("test")
    with pytest.raises(NmtError, match="unknown split 'test'; known: train, valid"):
        dataset.split("test")


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_what_is_not_a_dataset_is_refused(tmp_path, make):
    make(tmp_path / "data")
    refused = r"data: not a dataset \(no manifest.json\); make one .* recipe `nmt init` writes$"
    with pytest.raises(NmtError, match=refused):
        Dataset.open(tmp_path / "data")


def test_another_version_of_the_format_is_refused(tmp_path):
    manifest = write(tmp_path / "data").path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 7}))
    message = r"manifest.json: format version 7, but this nmt reads version 3; make the dataset"
    with pytest.raises(NmtError, match=message):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"version": 3}', b'{"ver'])
def test_a_damaged_manifest_is_refused(tmp_path, content):
    (write(tmp_path / "data").path / "manifest.json").write_bytes(content)
    with pytest.raises(NmtError, match=r"manifest.json: damaged"):
        Dataset.open(tmp_path / "data")


def test_a_missing_file_is_named(tmp_path):
    (write(tmp_path / "data").path / "train.de.offsets").unlink()
    with pytest.raises(NmtError, match=r"train.de.offsets: missing"):
        Dataset.open(tmp_path / "data")


def test_a_file_of_another_size_is_named_with_both_sizes(tmp_path):
    with (write(tmp_path / "data").path / "train.en.tokens").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(NmtError, match=r"train.en.tokens: 15 bytes instead of 14"):
        Dataset.open(tmp_path / "data")


def test_verifying_finds_a_single_changed_byte(tmp_path):
    dataset = write(tmp_path / "data")
    dataset.verify()
    file = dataset.path / "train.en.tokens"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    with pytest.raises(NmtError, match=r"train.en.tokens: the content has changed"):
        Dataset.open(tmp_path / "data").verify()


def test_the_fingerprint_belongs_to_the_data_alone(tmp_path):
    one, same = write(tmp_path / "one"), write(tmp_path / "same")
    other = write(tmp_path / "other", PAIRS[::-1])
    assert one.manifest.fingerprint == same.manifest.fingerprint != other.manifest.fingerprint


@pytest.mark.parametrize("error", [NmtError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_nothing_behind(tmp_path, error):
    def fail():
        with staging(tmp_path / "data") as directory:
            (directory / "half").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_older_dataset_as_it_was(tmp_path):
    write(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt), staging(tmp_path / "data"):
        raise KeyboardInterrupt
    Dataset.open(tmp_path / "data").verify()
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def test_a_newer_dataset_replaces_the_older_one_whole(tmp_path):
    write(tmp_path / "data", text=["a"])
    dataset = write(tmp_path / "data", PAIRS[:1])
    assert len(dataset.split("train")) == 1
    assert not (dataset.path / "valid.en").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def test_an_empty_directory_becomes_the_dataset(tmp_path):
    (tmp_path / "data").mkdir()
    assert len(write(tmp_path / "data").split("train")) == 3


def test_a_directory_with_other_things_in_it_is_refused_and_kept(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(NmtError, match="is not empty and not a dataset"):
        write(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_dataset_beside_other_things_is_not_replaced(tmp_path):
    write(tmp_path)
    (tmp_path / "run.json").write_text("weeks of training")
    (tmp_path / ".nfs01").write_text("")
    with pytest.raises(NmtError) as error:
        write(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'run.json'}: is no part of the dataset in {tmp_path}, which would be "
        "replaced; move it away, or choose another output_dir"
    )
    manifest = tmp_path / "manifest.json"
    older = json.loads(manifest.read_text()) | {"version": 1}
    manifest.write_text(json.dumps(older))  # a dataset that only its own version of nmt reads
    with pytest.raises(NmtError, match=r"run.json: is no part of the dataset"):
        write(tmp_path)
    (tmp_path / "run.json").unlink()
    write(tmp_path)


def test_a_file_in_the_place_of_the_dataset_is_refused(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(NmtError, match=r"data: is a file; choose another output_dir"):
        write(tmp_path / "data")


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NmtError, match=r"data: cannot be written: Not a directory"),
        staging(tmp_path / "file" / "data"),
    ):
        pytest.fail("the work began")

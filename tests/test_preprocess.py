import gzip
import itertools
import lzma
import math
import multiprocessing
import os
import pickle
import pkgutil
import random
import re
import resource
import shlex
import shutil
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import typer
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nmt.cli import preprocess as command
from nmt.data.dataset import Dataset
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError, TerminatedError
from nmt.io.lines import zstd
from nmt.preprocess import binarize, corpus, dataset_subwords, encoding, selection
from nmt.preprocess.binarize import preprocess
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Bitext, TextBlock
from nmt.recipe.config import build
from nmt.subwords.learning import SubwordTraining, train_subwords, vocab_size_for
from nmt.subwords.subwords import Subwords

WORDS = {
    "en": ["one", "two", "three", "four", "five", "six"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs"],
}


def write(prefix: Path, pairs: list[tuple[str, str]]) -> None:
    prefix.parent.mkdir(exist_ok=True)
    for suffix, lines in zip((".en", ".de"), zip(*pairs, strict=True), strict=True):
        Path(f"{prefix}{suffix}").write_text("".join(f"{line}\n" for line in lines), newline="")


def numbers(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    sentences = [draw.choices(range(6), k=draw.randint(1, 9)) for _ in range(count)]
    return [
        (" ".join(WORDS["en"][n] for n in it), " ".join(WORDS["de"][n] for n in it))
        for it in sentences
    ]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A current directory with a small corpus."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corpus" / "train", numbers(100, seed=1))
    write(tmp_path / "corpus" / "valid", numbers(10, seed=2))
    return tmp_path


def pretrained_subwords(directory: Path) -> str:
    """The path of a subword model for any text."""
    path = directory / "there.model"
    path.write_bytes(train_subwords(["one two three"] * 9, SubwordTraining(vocab_size=272)))
    return str(path)


def config(**settings: object) -> PreprocessConfig:
    given = {
        "source_lang": "en",
        "target_lang": "de",
        "train": ("corpus/train",),
        "valid": "corpus/valid",
        "vocab_size": 300,
        "workers": 1,
    }
    return build(PreprocessConfig, {**given, **settings}, "preprocess")


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_a_dataset_decodes_to_the_text_it_was_made_of(here):
    preprocess(config(test="corpus/valid"))
    dataset = Dataset.open(here / "data-bin")
    dataset.verify()
    subwords = Subwords.load(dataset.path)
    for name, pairs in (("train", numbers(100, 1)), ("valid", numbers(10, 2))):
        split = dataset.split(name)
        assert len(split) == len(pairs)
        ids = [split.target(index).tolist() for index in range(len(split))]
        assert all(sentence[-1] == EOS for sentence in ids)
        assert subwords.decode_target(ids) == [target for _, target in pairs]
        ids = [split.source(index).tolist() for index in range(len(split))]
        assert subwords.decode_target(ids) == [source for source, _ in pairs]
    assert dataset.split("valid").source_text() == [source for source, _ in numbers(10, 2)]
    assert dataset.split("test").reference_text() == [target for _, target in numbers(10, 2)]
    assert dataset.manifest.source_vocabulary == 300
    assert dataset.manifest.shared_vocabulary


def test_the_data_are_the_same_in_every_run_and_for_any_number_of_workers(here, monkeypatch):
    monkeypatch.setattr(corpus.Bitext.blocks, "__defaults__", (7, 0))
    for workers in (1, 2, 0):
        preprocess(config(workers=workers, output_dir=f"out-{workers}"))
    assert contents(here / "out-1") == contents(here / "out-2") == contents(here / "out-0")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to cores")
def test_workers_are_as_many_as_the_cores_that_the_process_may_use(here, monkeypatch):
    encode = mock.Mock(side_effect=binarize.encode)
    monkeypatch.setattr(binarize, "encode", encode)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    preprocess(config(workers=0))
    assert encode.call_args.args[2] == 1


def test_the_size_of_chunks_does_not_show(here, monkeypatch):
    whole = preprocess(config(output_dir="whole")).fingerprint
    monkeypatch.setattr(corpus.Bitext.blocks, "__defaults__", (1, 0))
    model = "whole/subwords.model"  # the sample from which it is learned has another order
    assert preprocess(config(output_dir="single", subword_model=model)).fingerprint == whole


def test_compressed_and_plain_text_give_the_same_data(here):
    plain = preprocess(config(output_dir="plain")).fingerprint
    for file in list((here / "corpus").iterdir()):
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert preprocess(config(output_dir="compressed")).fingerprint == plain


def test_training_corpora_are_read_one_after_the_other(here):
    write(here / "corpus" / "more", [("one", "eins"), ("two", "zwei")])
    preprocess(config(train=["corpus/train", "corpus/more"]))
    train = Dataset.open(here / "data-bin").split("train")
    subwords = Subwords.load(here / "data-bin")
    assert len(train) == 102
    assert subwords.decode_target([train.target(101).tolist()]) == ["zwei"]


def test_dropped_pairs_are_counted_by_reason_and_the_others_keep_their_order(here):
    bad = [("", "eins"), ("one", " "), ("one " * 50, "eins"), ("two", "zwei " * 9)]
    write(here / "corpus" / "train", [*bad[:2], *numbers(100, 1), *bad[2:]])
    manifest = preprocess(config(max_tokens_per_sentence=40, max_length_ratio=4))
    train = manifest.splits["train"]
    assert train.dropped == {"empty": 2, "too_short": 0, "too_long": 1, "unequal": 1}
    assert train.pairs == 100
    split = Dataset.open(here / "data-bin").split("train")
    subwords = Subwords.load(here / "data-bin")
    decoded = subwords.decode_target([split.source(i).tolist() for i in range(100)])
    assert decoded == [source for source, _ in numbers(100, 1)]


def test_held_out_pairs_are_neither_dropped_nor_shortened(here):
    pairs = [("", "eins"), ("one " * 400, ""), ("one\u2028\x00two", "eins"), (" ", " ")]
    write(here / "corpus" / "valid", pairs)
    manifest = preprocess(config(max_tokens_per_sentence=40, max_length_ratio=2))
    valid = Dataset.open(here / "data-bin").split("valid")
    assert len(valid) == manifest.splits["valid"].pairs == 4
    assert manifest.splits["valid"].dropped == {}
    assert valid.source(0).tolist() == valid.target(1).tolist() == [EOS]
    assert valid.source_lengths[1] > 400
    assert valid.source_text() == [source for source, _ in pairs]
    assert valid.reference_text() == [target for _, target in pairs]


line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=20)


@settings(max_examples=20)
@given(pairs=st.lists(st.tuples(line, line), min_size=1, max_size=5))
def test_any_held_out_text_comes_back_line_by_line(tmp_path_factory, pairs):
    here = tmp_path_factory.mktemp("text")
    write(here / "train", numbers(30, seed=1))
    write(here / "valid", pairs)
    preprocess(
        config(train=f"{here}/train", valid=f"{here}/valid", vocab_size=280, output_dir=f"{here}/d")
    )
    valid = Dataset.open(here / "d").split("valid")
    assert list(zip(valid.source_text(), valid.reference_text(), strict=True)) == pairs
    assert len(valid) == len(pairs)


def test_unknown_tokens_are_counted(here):
    write(here / "corpus" / "valid", [("one Ω", "eins"), ("two", "zwei")])
    manifest = preprocess(config(vocab_size=40, byte_fallback=False))
    assert manifest.splits["valid"].source_unknown == 1
    assert manifest.splits["valid"].target_unknown == 0
    assert manifest.splits["train"].source_unknown == 0


def test_each_side_may_have_a_vocabulary_of_its_own(here):
    manifest = preprocess(config(separate_vocabularies=True, vocab_size=290))
    assert not manifest.shared_vocabulary
    assert (manifest.source_vocabulary, manifest.target_vocabulary) == (290, 290)
    subwords = Subwords.load(here / "data-bin")
    valid = Dataset.open(here / "data-bin").split("valid")
    text = subwords.decode_target([valid.target(index).tolist() for index in range(10)])
    assert text == valid.reference_text()
    source = (here / "data-bin" / "subwords.source.model").read_bytes()
    assert source != (here / "data-bin" / "subwords.target.model").read_bytes()


@pytest.mark.parametrize("separate", [False, True])
def test_existing_subwords_are_used_as_they_are(here, separate):
    preprocess(config(output_dir="old", separate_vocabularies=separate, vocab_size=280))
    manifest = preprocess(config(subword_model="old", separate_vocabularies=separate))
    assert manifest.source_vocabulary == 280
    assert manifest.shared_vocabulary == (not separate)
    assert manifest.fingerprint == Dataset.open(here / "old").manifest.fingerprint


def test_existing_subwords_may_be_those_of_a_dataset_in_shards(here):
    for number in (1, 2):
        preprocess(config(output_dir="old", shard=f"{number}/2", vocab_size=280))
    preprocess(config(subword_model="old"))
    assert Subwords.load(here / "data-bin").is_same_as(Subwords.load(here / "old" / "shard-2-of-2"))


def test_a_shared_model_does_not_go_with_separate_vocabularies(here):
    preprocess(config(output_dir="old"))
    with pytest.raises(NmtError, match="separate_vocabularies is set, but subword_model old/sub"):
        preprocess(config(subword_model="old/subwords.model", separate_vocabularies=True))


def test_casing_does_not_go_with_subwords_without_marks(here):
    preprocess(config(output_dir="old", casing="inline"))
    preprocess(config(subword_model="old", casing="inline"))
    preprocess(config(subword_model="old"))
    for key in ("subword_model", "extend_vocabulary"):
        there = pretrained_subwords(here)
        with pytest.raises(NmtError) as error:
            preprocess(config(casing="inline", **{key: there}))
        assert str(error.value) == (
            f"preprocess: casing is inline, but the subwords of {there} have no marks of casing; "
            "leave out casing, or learn new subwords"
        )


def test_the_manifest_holds_the_whole_recipe_but_what_does_not_shape_the_data(here):
    recipe = preprocess(config(seed=3)).recipe
    assert recipe["seed"] == 3
    assert recipe["max_tokens_per_sentence"] == 256
    assert not {"workers", "output_dir", "shard"} & set(recipe)
    assert build(PreprocessConfig, recipe, "preprocess") == PreprocessConfig(
        source_lang="en",
        target_lang="de",
        train=("corpus/train",),
        valid="corpus/valid",
        vocab_size=300,
        seed=3,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source_lang": "", "train": [], "valid": None},
            "preprocess: not given: --source-lang, --train, --valid; give these options, or the "
            "keys in the recipe, which `nmt init` writes",
        ),
        (
            {"target_lang": "", "train": [{"path": "a", "target_lang": "de"}, "b"]},
            "preprocess: not given: --target-lang of b; give these options, or the keys in the "
            "recipe",
        ),
        ({"target_lang": "en"}, "preprocess: source_lang and target_lang are both 'en'"),
        ({"shard": "3/2"}, "preprocess: shard must be I/N with I from 1 to N, or auto, not '3/2'"),
        (
            {"train": ["-", "-"]},
            "preprocess: train has - twice, but there is only one standard input",
        ),
        *(
            (
                {"train": [{"path": "corpus/train", "weight": weight}]},
                f"weight must be more than 0 and at most 1,000,000, not {re.escape(str(weight))}",
            )
            for weight in (0, -1.0, 1e30, math.inf)
        ),
        ({"seed": -1}, "preprocess: seed must be at least 0, not -1"),
        ({"train": [{"weight": 1}]}, "preprocess.train: .*path"),
        ({"valid": [{"source_lang": "en"}]}, "preprocess.valid: .*path"),
        ({"train": [{"path": "c", "max_pairs": 0}]}, "max_pairs must be at least 1, not 0"),
        ({"workers": -1}, "preprocess: workers must be at least 0, not -1"),
        ({"vocab_size": 3}, "preprocess: vocab_size must be 0 or more than the 4 special pieces"),
        ({"max_length_ratio": 0}, "preprocess: max_length_ratio must be at least 1, not 0"),
        ({"model_type": "word"}, "preprocess.model_type: unknown value 'word'"),
        ({"vocab_size": 9999}, "vocab_size 9999 is more than the text allows; use at most"),
        ({"train": "corpus/tarin"}, "no such file: corpus/tarin.en, nor"),
        ({"test": "corpus/test"}, "no such file: corpus/test.en, nor"),
        ({"subword_model": "there"}, "there: no such subword model"),
        (
            {"min_tokens_per_sentence": 99},
            "cleaning dropped 100 of 100 training pairs: 100 too short; lower preprocess.min_tok",
        ),
    ],
)
def test_a_mistake_is_answered_and_nothing_is_written(here, changes, message):
    with pytest.raises(NmtError, match=message):
        preprocess(config(**changes))
    assert [file.name for file in here.iterdir()] == ["corpus"]


@pytest.mark.parametrize(
    ("clean", "dropped"),
    [
        ("identical", "60 identical"),
        ([{"name": "script", "source": "GREEK"}], "60 script"),
        ([{"name": "length", "max": 2}, "identical"], "30 length, 30 identical"),
    ],
)
def test_steps_that_leave_no_pair_are_named(here, clean, dropped):
    pairs = [("one", "one"), ("one two six", "one two six")]
    write(here / "corpus" / "train", 30 * pairs)
    write(here / "corpus" / "valid", pairs)
    there = pretrained_subwords(here)
    for subwords in ({}, {"subword_model": there}):
        with pytest.raises(NmtError) as error:
            preprocess(config(clean=clean, **subwords))
        assert str(error.value) == (
            f"preprocess: cleaning dropped 60 of 60 training pairs: {dropped}; leave out that step "
            "of preprocess.clean, or set its limits wider"
        )


def test_training_text_as_the_validation_set_is_named_where_no_pair_is_left(here):
    pairs = [(f"a dog {number}", f"ein Hund {number}") for number in range(9)]
    for split in ("train", "valid"):
        write(here / "corpus" / split, [*pairs, ("same", "same")])
    with pytest.raises(NmtError) as error:
        preprocess(config(clean=["identical", "held_out"], subword_model=pretrained_subwords(here)))
    assert str(error.value) == (
        "preprocess: cleaning dropped 10 of 10 training pairs: 1 identical, 9 held out; the "
        "validation or test set holds training text; give other sets (--valid, --test)"
    )


def test_the_script_of_japanese_is_known_from_its_code(here):
    pairs = [("one cat", "猫がいる"), ("a door", "ドアです"), ("спасибо", "ありがとう")]
    for split in ("train", "valid"):
        write(here / "corpus" / split, 30 * pairs)
        Path(f"corpus/{split}.de").rename(f"corpus/{split}.ja")
    manifest = preprocess(config(target_lang="ja", clean="script", vocab_size=290))
    assert manifest.splits["train"].dropped["script"] == 30
    assert manifest.splits["train"].pairs == 60
    assert manifest.recipe["clean"][0]["source"] == ["LATIN"]
    assert "KATAKANA" in manifest.recipe["clean"][0]["target"]


def test_tokenised_text_is_named_unless_it_is_made_plain_in_all_splits(here, capsys):
    plain = [(f"one, {n}, two.", "猫が好きです。") for n in range(40)]
    for split in ("train", "valid"):
        tokens = [(s.replace(",", " ,").replace(".", " ."), " ".join(t)) for s, t in plain]
        write(here / "corpus" / split, tokens)
        Path(f"corpus/{split}.de").rename(f"corpus/{split}.ja")
    preprocess(config(target_lang="ja"))
    expected = "a model of it needs input that is {0} alike, and writes such output; to train on "
    expected += "plain text, put detokenize first in preprocess.clean\n"
    assert capsys.readouterr().err == (
        f"nmt: warning: corpus/train.en: the en text is tokenised: {expected.format('tokenised')}"
        f"nmt: warning: corpus/train.ja: the ja text is segmented: {expected.format('segmented')}"
    )
    preprocess(config(target_lang="ja", clean=["detokenize"], on_empty="error"))
    assert capsys.readouterr().err == ""
    dataset = Dataset.open(here / "data-bin")
    subwords = Subwords.load(dataset.path)
    for name in ("train", "valid"):
        split = dataset.split(name)
        ids = [split.target(index).tolist() for index in range(len(split))]
        assert subwords.decode_target(ids) == [target for _, target in plain]
    assert dataset.split("valid").source_text() == [source for source, _ in plain]
    assert dataset.split("valid").reference_text() == [target for _, target in plain]


def test_empty_training_lines_can_be_an_error(here):
    write(here / "corpus" / "train", [*numbers(50, seed=1), ("one", "")])
    with pytest.raises(NmtError, match=r"train.en and \S*train.de: a side of line 51 is empty"):
        preprocess(config(on_empty="error"))
    assert not (here / "data-bin").exists()


def test_files_that_do_not_match_leave_nothing_behind(here):
    with (here / "corpus" / "train.en").open("a") as file:
        file.write("one\n")
    with pytest.raises(NmtError, match=r"train.en has 101 lines, but \S*train.de has 100"):
        preprocess(config())
    with pytest.raises(NmtError, match=r"train.en has 101 lines, but \S*train.de has 100"):
        preprocess(config(train="corpus/valid", valid="corpus/train", vocab_size=280))
    assert [file.name for file in here.iterdir()] == ["corpus"]


def test_invalid_bytes_are_an_error_unless_they_are_to_be_replaced(here):
    with (here / "corpus" / "train.de").open("ab") as file:
        file.write(b"eins \xff\n")
    with (here / "corpus" / "train.en").open("ab") as file:
        file.write(b"one\n")
    with pytest.raises(NmtError, match=r"train.de:101: byte 0xff is not UTF-8; .* or give --set"):
        preprocess(config())
    assert preprocess(config(on_invalid_utf8="replace")).splits["train"].pairs == 101


def test_every_form_of_input_gives_the_same_data(here, monkeypatch):
    plain = preprocess(config(output_dir="plain")).fingerprint
    sides = [Path(f"corpus/train.{side}").read_text().splitlines() for side in ("en", "de")]
    rows = "".join(f"{s}\t{t}\n" for s, t in zip(*sides, strict=True)).encode()
    (here / "train.tsv").write_bytes(rows)
    (here / "train.tsv.gz").write_bytes(gzip.compress(rows))
    for suffix, compress in ((".xz", lzma.compress), (".zst", zstd.compress)):
        for side in ("en", "de"):
            text = Path(f"corpus/train.{side}").read_bytes()
            Path(f"packed{suffix[1:]}.{side}{suffix}").write_bytes(compress(text))
    for path in ("train.tsv", "train.tsv.gz", "packedxz", "packedzst", "-"):
        with (here / "train.tsv").open() as stdin, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stdin)
            made = preprocess(config(output_dir="made", train=path))
        assert made.fingerprint == plain, path


def test_a_row_without_two_columns_is_named(here):
    (here / "train.tsv").write_text("one\teins\ntwo zwei\n")
    with pytest.raises(NmtError, match=r"train.tsv: line 2 has 1 column instead of 2"):
        preprocess(config(train="train.tsv"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("one\teins\ntwo zwei\n", "stdin: line 2 has 1 column instead of 2"),
        ("one\teins\ntwo\t\n", "stdin: a side of line 2 is empty"),
        ("", "stdin: empty; give files with sentences"),
    ],
)
def test_a_mistake_on_stdin_is_named_as_such(here, monkeypatch, rows, message):
    (here / "rows").write_text(rows)
    preprocess(config(output_dir="model"))
    with (here / "rows").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(NmtError, match=f"^{message}"):
            preprocess(config(train="-", subword_model="model", on_empty="error"))


def test_a_closed_stdin_costs_one_line(here, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(NmtError, match="stdin is closed; name a file to read"):
        preprocess(config(train="-"))


@pytest.mark.parametrize("suffix", ["xz", "zst"])
def test_a_truncated_file_is_named(here, suffix):
    compress = {"xz": lzma.compress, "zst": zstd.compress}[suffix]
    for side in ("en", "de"):
        text = Path(f"corpus/train.{side}").read_bytes()
        Path(f"cut.{side}.{suffix}").write_bytes(compress(text)[:-20])
    with pytest.raises(NmtError, match=f"cut.en.{suffix}: the \\w+ file is truncated or damaged"):
        preprocess(config(train="cut"))


def test_of_equal_pairs_only_the_first_is_kept_and_the_others_are_shown(here, monkeypatch):
    monkeypatch.setattr(selection, "SELECTED_AT_ONCE", 30)
    new = [("six six six", "eins"), ("one", "six")]
    write(here / "corpus" / "more", [new[0], ("six six six", "zwei"), *new, new[1]])
    without = preprocess(config(output_dir="first", train="corpus/train", clean=["duplicates"]))
    unique = list(dict.fromkeys(numbers(100, seed=1)))
    assert without.splits["train"].pairs == len(unique)
    both = preprocess(
        config(train=["corpus/more", "corpus/more"], clean=["duplicates"], subword_model="first")
    )
    train = both.splits["train"]
    assert (train.pairs, train.dropped["duplicates"]) == (3, 7)
    assert len(train.examples["duplicates"]) == 7
    assert train.examples["duplicates"][:3] == (new[0], new[1], new[0])


def test_pairs_whose_sides_divide_the_same_text_elsewhere_are_not_equal(here):
    write(here / "corpus" / "tabs", [("one\ttwo", "drei"), ("one", "two\tdrei")])
    preprocess(config(output_dir="first"))
    made = preprocess(config(train="corpus/tabs", clean=["duplicates"], subword_model="first"))
    assert made.splits["train"].pairs == 2


def test_weights_and_limits_say_how_often_pairs_are_there(here):
    mix = [{"path": "corpus/train", "weight": 2.5}, {"path": "corpus/train", "max_pairs": 7}]
    manifest = preprocess(config(train=mix))
    split = Dataset.open(here / "data-bin").split("train")
    assert len(split) == 257
    assert manifest.splits["train"].dropped["not_sampled"] == 93
    subwords = Subwords.load(here / "data-bin")
    given = Counter(source for source, _ in numbers(100, seed=1))
    taken = Counter(subwords.decode_target([split.source(i).tolist() for i in range(250)]))
    assert all(2 * n <= taken[text] <= 3 * n for text, n in given.items())
    other = preprocess(config(train=mix, seed=9, output_dir="other"))
    assert other.fingerprint != manifest.fingerprint


def test_no_held_out_line_is_trained_on(here):
    kept, leaked = ("one two", "eins zwei"), numbers(10, seed=2)[3]
    write(here / "corpus" / "more", [kept, leaked, (leaked[0], "eins"), ("one", leaked[1] + " ")])
    settings = {"clean": ["spaces", "held_out"], "train": ["corpus/train", "corpus/more"]}
    manifest = preprocess(config(**settings))
    split = Dataset.open(here / "data-bin").split("train")
    text = Subwords.load(here / "data-bin").decode_target(
        [split.source(i).tolist() for i in range(len(split))]
    )
    assert not {source for source, _ in numbers(10, seed=2)} & set(text)
    assert manifest.splits["train"].dropped["held_out"] >= 3
    assert manifest.splits["train"].rewritten == {"spaces": 1}


MOMENTS = [
    ("nmt.preprocess.dataset_subwords.train_subwords", 1),
    *[("nmt.preprocess.encoding.Encoder.__call__", count) for count in (1, 6, 7, 11, 4)],
    ("nmt.preprocess.encoding.mark_repeated", 1),
    ("nmt.preprocess.selection.CopyCounts.copies", 2),
    ("nmt.data.writer.DatasetWriter.finish", 1),
    ("pathlib.Path.replace", 1),  # of the manifest
    ("nmt.io.files.sync", 3),
    ("pathlib.Path.rename", 1),  # of the directory
]


def test_after_any_number_of_kills_the_same_call_ends_with_the_same_bytes(here, monkeypatch):
    monkeypatch.setattr(corpus.Bitext.blocks, "__defaults__", (9, 0))
    monkeypatch.setattr(binarize, "SAVE_EVERY", 3)
    monkeypatch.setattr(selection, "SELECTED_AT_ONCE", 50)
    settings = {"train": ["corpus/train", "corpus/train"], "clean": ["duplicates"]}
    preprocess(config(output_dir="whole", **settings))

    def die_at(place: str, count: int) -> None:
        module, _, name = place.rpartition(".")
        owner = pkgutil.resolve_name(module)
        calls = itertools.count(1)
        original = getattr(owner, name)

        def counted(*arguments: object, **named: object) -> object:
            if next(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        setattr(owner, name, counted)
        preprocess(config(**settings))

    fork = multiprocessing.get_context("fork")
    for moment in MOMENTS:
        child = fork.Process(target=die_at, args=moment)
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, moment
        assert not (here / "data-bin").exists()
    preprocess(config(**settings))
    assert contents(here / "data-bin") == contents(here / "whole")
    assert sorted(path.name for path in here.iterdir()) == ["corpus", "data-bin", "whole"]


def test_a_kill_while_scratch_is_removed_costs_no_work(here, monkeypatch):
    remove = shutil.rmtree

    def interrupt(path, **options):
        if path.name == "encoded":
            (path / "source.tokens").unlink()
            raise KeyboardInterrupt
        remove(path, **options)

    preprocess(config(output_dir="whole"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            preprocess(config())
    monkeypatch.delattr(encoding.Encoder, "__call__")
    preprocess(config())
    assert contents(here / "data-bin") == contents(here / "whole")


@pytest.mark.parametrize("error", [KeyboardInterrupt, TerminatedError])
def test_an_interrupted_run_is_kept_for_the_same_call_and_removed_by_another(
    here, monkeypatch, error
):
    def interrupt(self, lines):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Subwords, "encode_target", interrupt)
        with pytest.raises(error):
            preprocess(config())
    (left,) = here.glob(".data-bin.partial-*")
    assert not (here / "data-bin").exists()
    preprocess(config(seed=5))
    assert not left.exists()


@pytest.mark.parametrize("settings", [{}, {"max_tokens_per_sentence": 9}])
def test_two_processes_do_not_write_the_same_dataset(here, monkeypatch, settings):
    def nested(*arguments):
        preprocess(config(**settings))

    monkeypatch.setattr(binarize, "_fill", nested)
    with pytest.raises(NmtError, match="data-bin: another process is writing it"):
        preprocess(config())


@contextmanager
def counted(monkeypatch, calls: list[int]):
    """Blocks are of 1,000 lines and saved at once; `calls` gets their first lines."""
    original = encoding.Encoder.__call__

    def call(self, block):
        calls.append(block.first)
        return original(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(corpus.Bitext.blocks, "__defaults__", (1000, 0))
        patch.setattr(binarize, "SAVE_EVERY", 1)
        patch.setattr(encoding.Encoder, "__call__", call)
        yield


def test_a_disk_that_fills_costs_a_line_and_with_room_the_same_call_goes_on(here, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = preprocess(config(output_dir="model")) and "model/subwords.model"
    write(here / "corpus" / "train", numbers(10_000, seed=1))
    whole = preprocess(config(output_dir="whole", subword_model=model)).fingerprint
    size = Path(model).stat().st_size + 1000  # the kernel refuses to write more to a file
    calls: list[int] = []
    with counted(monkeypatch, calls):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            with pytest.raises(NmtError, match=r"data-bin: cannot be written: .*, and run"):
                preprocess(config(subword_model=model))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not (here / "data-bin").exists()
        assert preprocess(config(subword_model=model)).fingerprint == whole
    full = max(first for first in calls if calls.count(first) > 1)
    assert 1 < full < 9001
    assert calls == [*range(1, full + 1, 1000), *range(full, 10_000, 1000)]
    assert sorted(path.name for path in here.iterdir()) == ["corpus", "data-bin", "model", "whole"]


def test_after_a_worker_was_killed_the_same_call_goes_on(here, monkeypatch):
    write(here / "corpus" / "train", numbers(10_000, seed=1))
    model = preprocess(config(output_dir="model")) and "model/subwords.model"
    original = encoding.Encoder.__call__

    def die(self, block):
        if block.first == 9001:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, block)

    calls: list[int] = []
    with counted(monkeypatch, calls):
        with monkeypatch.context() as patch:
            patch.setattr(encoding.Encoder, "__call__", die)
            remedy = "a worker process was killed, .* again to resume, .* fewer --workers"
            with pytest.raises(NmtError, match=remedy):
                preprocess(config(subword_model=model, workers=2))
        made = preprocess(config(subword_model=model)).fingerprint
    assert calls[0] > 1
    assert made == preprocess(config(output_dir="whole", subword_model=model)).fingerprint


def test_a_part_of_a_corpus_is_drawn_evenly_whatever_its_size():
    pairs, wanted, at_once = 5 * 10**9, 2 * 10**9, 10**5
    draw = selection.CopyCounts(pairs, wanted, (1, 0))
    some = [int(draw.copies(np.ones(at_once, np.bool_)).sum()) for _ in range(5)]
    assert all(abs(it - 0.4 * at_once) <= 1 for it in some)
    for seed in range(20):
        draw = selection.CopyCounts(1000, 377, (seed, 0))
        present = np.random.default_rng(seed).permuted(np.repeat([True, False], 1000))
        taken = np.concatenate([draw.copies(part) for part in np.split(present, 80)])
        assert taken.sum() == 377
        assert not taken[~present].any()


def sentences(dataset: Dataset) -> list[tuple[list[int], list[int]]]:
    split = dataset.split("train")
    return sorted((split.source(i).tolist(), split.target(i).tolist()) for i in range(len(split)))


def test_shards_are_one_dataset_without_duplicates(here):
    whole = preprocess(config(output_dir="whole", clean=["duplicates", "identical"]))
    write(here / "corpus" / "train", [*numbers(100, seed=1), ("one", "one")])
    settings = {"subword_model": "whole", "clean": ["duplicates", "identical"]}
    for number in (1, 2, 3):
        preprocess(config(shard=f"{number}/3", **settings))
        if number < 3:
            with pytest.raises(NmtError, match=rf"shard-{number + 1}-of-3: missing; make it with "):
                Dataset.open(here / "data-bin")
    dataset = Dataset.open(here / "data-bin")
    dataset.verify()
    assert sentences(dataset) == sentences(Dataset.open(here / "whole"))
    train = dataset.manifest.splits["train"]
    assert train.pairs == whole.splits["train"].pairs
    assert train.dropped["duplicates"] == whole.splits["train"].dropped["duplicates"]
    assert train.dropped["identical"] == 1
    assert dataset.split("valid").reference_text() == [target for _, target in numbers(10, 2)]
    split = dataset.split("train")
    chosen = np.array([0, len(split) - 1, len(split) // 2])
    rows = split.padded("target", chosen)
    for row, index in zip(rows.tolist(), chosen.tolist(), strict=True):
        ids = split.target(index).tolist()
        assert row == ids + [0] * (rows.shape[1] - len(ids))
        assert split.target_lengths[index] == len(ids)
    copy = pickle.loads(pickle.dumps(split))
    assert np.array_equal(copy.padded("target", chosen), rows)
    preprocess(config(shard="2/3", **settings | {"max_tokens_per_sentence": 9}))
    with pytest.raises(NmtError, match="shard-2-of-3: made of other text or with other settings"):
        Dataset.open(here / "data-bin")
    preprocess(config(shard="1/2", **settings))
    with pytest.raises(NmtError, match="data-bin: shards of several sets"):
        Dataset.open(here / "data-bin")


def test_a_shard_does_not_hide_a_whole_dataset(here):
    preprocess(config())
    with pytest.raises(NmtError, match="data-bin: holds a whole dataset and cannot hold a part"):
        preprocess(config(shard="1/2"))
    Dataset.open(here / "data-bin").verify()


def test_a_shard_without_pairs_is_answered_with_the_remedy(here):
    with pytest.raises(NmtError, match="no training pair belongs to part 7/1000; divide so little"):
        preprocess(config(shard="7/1000"))


@for_each("blocks_of_a_corpus", [1, 3, 40])
@for_each("shards", [2, 3, 4, 8])
def test_the_documents_of_all_corpora_are_spread_over_the_shards(blocks_of_a_corpus, shards):
    files = Bitext(Path("a.en"), Path("a.de"))
    counts = Counter(
        TextBlock(files, 1 + at * 9_990, 9, b"", b"", 0, corpus=number).shard(shards)
        for number in range(48)
        for at in range(blocks_of_a_corpus)
    )
    assert sorted(counts) == [*range(1, shards + 1)]
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_copy_of_a_shard_does_not_stand_for_another(here):
    preprocess(config(shard="1/2"))
    first = here / "data-bin" / "shard-1-of-2"
    shutil.copytree(first, first.with_name("shard-2-of-2"))
    with pytest.raises(
        NmtError, match="shard-2-of-2: holds shard 1/2, which another directory holds"
    ):
        Dataset.open(here / "data-bin")


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4"}, (1, 4)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_MIN": "5",
                "SLURM_ARRAY_TASK_COUNT": "4",
            },
            (3, 4),
        ),
    ],
)
def test_a_shard_can_be_that_of_the_process(monkeypatch, environment, part):
    for name in ("RANK", "WORLD_SIZE", "SLURM_ARRAY_TASK_COUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NmtError, match="shard is auto, but neither torchrun nor a Slurm array"):
        config(shard="auto")
    for name in environment:
        monkeypatch.setenv(name, "x")
    with pytest.raises(NmtError, match="shard is auto, but neither torchrun nor a Slurm array"):
        config(shard="auto")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert config(shard="auto").part == part


def run(arguments: str):
    app = typer.Typer(rich_markup_mode=None, context_settings={"max_content_width": 100})
    app.callback()(lambda: None)
    app.command("preprocess", epilog=command.EXAMPLE)(command.preprocess)
    return CliRunner().invoke(app, shlex.split(arguments), catch_exceptions=False)


def test_the_example_of_the_help_runs_as_it_is(here):
    write(
        here / "corpus" / "train",
        [(f"{s} {i}", f"{i} {t}") for i, (s, t) in enumerate(numbers(900, 1))],
    )
    line = next(line for line in command.EXAMPLE.splitlines() if line.strip().startswith("nmt "))
    result = run(line.strip().removeprefix("nmt "))
    assert result.stdout == "data-bin\n"
    assert len(Dataset.open(here / "data-bin").split("train")) == 900


def test_the_command_prints_the_directory_and_tells_what_it_did(here):
    write(here / "corpus" / "train", [("", "eins"), *numbers(100, seed=1)])
    result = run(
        "preprocess -s en -t de --train corpus/train --valid corpus/valid --vocab-size 300 "
        "--model-type bpe --workers 1 --seed 2 --output-dir out/put"
    )
    manifest = Dataset.open(here / "out" / "put").manifest
    train, valid = manifest.splits["train"], manifest.splits["valid"]
    assert result.stdout == "out/put\n"
    assert result.stderr == (
        "split  pairs  en tokens  unknown  de tokens  unknown\n"
        f"train    100  {train.source_tokens:>9,}    0.00%  {train.target_tokens:>9,}    0.00%\n"
        f"valid     10  {valid.source_tokens:>9,}    0.00%  {valid.target_tokens:>9,}    0.00%\n"
        "dropped from train: 1 empty\n"
        "vocabulary: 300 shared\n"
    )


def test_flags_win_over_assignments_and_these_over_the_recipe(here):
    (here / "nmt.yaml").write_text(
        "preprocess: {source_lang: en, target_lang: de, train: corpus/train, valid: corpus/valid,"
        " vocab_size: 270, seed: 5, separate_vocabularies: true}"
    )
    result = run("preprocess --set preprocess.vocab_size=280 --set preprocess.seed=6 --seed 7")
    manifest = Dataset.open(here / "data-bin").manifest
    assert (manifest.recipe["vocab_size"], manifest.recipe["seed"]) == (280, 7)
    assert result.stderr.endswith("dropped from train: nothing\nvocabulary: 280 en, 280 de\n")


def test_the_size_of_the_vocabulary_follows_the_size_of_the_corpus(here, monkeypatch):
    asked = []
    learn = dataset_subwords.train_subwords

    def note(sentences, training, **rest):
        asked.append(training.vocab_size)
        return learn(sentences, replace(training, vocab_size=300), **rest)

    monkeypatch.setattr(dataset_subwords, "train_subwords", note)
    command = "preprocess -s en -t de --train corpus/train --valid corpus/valid --workers 1"
    said = "vocab_size: 2,000, for 100 training pairs; another size: --vocab-size\n"
    assert run(command).stderr.startswith(said)
    assert "vocab_size" not in run(f"{command} --vocab-size 310").stderr
    write(here / "corpus" / "more", numbers(20_001, seed=1))
    preprocess(config(vocab_size=0, train=["corpus/more"]))
    preprocess(config(vocab_size=0, train=[{"path": "corpus/more", "max_pairs": 9}]))
    preprocess(config(vocab_size=0, train=["corpus/train", {"path": "corpus/more", "weight": 0.9}]))
    assert asked == [2000, 310, 8000, 2000, 2000]


def test_a_default_size_that_the_text_does_not_allow_gives_way(here, capsys):
    write(here / "corpus" / "many", [(chr(0x4E00 + n), chr(0x6E00 + n)) for n in range(1500)] * 3)
    for name, least, most in (("train", 256, 2000), ("many", 3000, 9000)):
        manifest = preprocess(config(vocab_size=0, train=[f"corpus/{name}"]))
        said = re.findall(r"^vocab_size: ([\d,]+),", capsys.readouterr().err, re.MULTILINE)
        assert said[0] == "2,000"
        assert said[-1] == f"{manifest.source_vocabulary:,}"
        assert least < manifest.source_vocabulary < most


@for_each(
    ("pairs", "size"),
    [(1, 2000), (19_999, 2000), (20_000, 8000), (99_999, 8000), (900_000, 10_000), (10**7, 32_000)],
)
def test_sizes_of_vocabularies(pairs, size):
    assert vocab_size_for(pairs) == size


def test_subwords_are_learned_as_the_flags_say(here):
    run(
        "preprocess -s en -t de --train corpus/train --valid corpus/valid --vocab-size 60 "
        "--no-byte-fallback --character-coverage 1 --user-symbol <en> --user-symbol <de>"
    )
    subwords = Subwords.load(here / "data-bin")
    assert subwords.source_pieces([4, 5]) == ["<en>", "<de>"]
    assert subwords.encode_source(["<de>"])[0][-1] == 5
    assert "<0x41>" not in subwords.source_pieces([*range(subwords.source_size)])
    assert Dataset.open(here / "data-bin").manifest.recipe["character_coverage"] == 1.0


def test_the_defaults_in_the_help_are_those_of_the_recipe():
    text = " ".join(run("preprocess --help").stdout.split())
    for flag in ("vocab-size", "model-type", "output-dir", "workers", "seed", "character-coverage"):
        default = getattr(PreprocessConfig(), flag.replace("-", "_"))
        _, _, about = text.partition(f"--{flag} ")
        assert f"[default: {default}]" in about.split(" --")[0]

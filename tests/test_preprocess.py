import gzip
import random
import shlex
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nmt.cli import preprocess as command
from nmt.config import build
from nmt.data.format import EOS, Dataset
from nmt.errors import NmtError
from nmt.preprocess import corpus
from nmt.preprocess.binarize import PreprocessConfig, preprocess
from nmt.preprocess.subwords import Subwords

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
    monkeypatch.setattr(corpus.Bitext.chunks, "__defaults__", ("error", 7))
    for workers in (1, 2, 0):
        preprocess(config(workers=workers, output_dir=f"out-{workers}"))
    assert contents(here / "out-1") == contents(here / "out-2") == contents(here / "out-0")


def test_the_size_of_chunks_does_not_show(here, monkeypatch):
    whole = preprocess(config(output_dir="whole")).fingerprint
    monkeypatch.setattr(corpus.Bitext.chunks, "__defaults__", ("error", 1))
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


@settings(max_examples=20, deadline=None)
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


def test_a_shared_model_does_not_go_with_separate_vocabularies(here):
    preprocess(config(output_dir="old"))
    with pytest.raises(NmtError, match="separate_vocabularies is set, but subword_model old/sub"):
        preprocess(config(subword_model="old/subwords.model", separate_vocabularies=True))


def test_the_manifest_holds_the_whole_recipe_but_what_does_not_shape_the_data(here):
    recipe = preprocess(config(seed=3)).recipe
    assert recipe["seed"] == 3
    assert recipe["max_tokens_per_sentence"] == 256
    assert not {"workers", "output_dir"} & set(recipe)
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
            "preprocess: not given: --source-lang, --train, --valid; say it there or in the recipe",
        ),
        ({"target_lang": "en"}, "preprocess: source_lang and target_lang are both 'en'"),
        ({"workers": -1}, "preprocess: workers must be at least 0, not -1"),
        ({"vocab_size": 3}, "preprocess: vocab_size must be more than the 4 special pieces"),
        ({"max_length_ratio": 0}, "preprocess: max_length_ratio must be at least 1, not 0"),
        ({"model_type": "word"}, "preprocess.model_type: unknown value 'word'"),
        ({"vocab_size": 9999}, "vocab_size 9999 is more than the text allows; use at most"),
        ({"train": "corpus/tarin"}, "neither corpus/tarin.en nor corpus/tarin.en.gz"),
        ({"test": "corpus/test"}, "neither corpus/test.en nor corpus/test.en.gz"),
        ({"subword_model": "there"}, "there: no such subword model"),
        (
            {"min_tokens_per_sentence": 99},
            r"cleaning left no training pair \(dropped: 100 too short\)",
        ),
    ],
)
def test_a_mistake_is_answered_and_nothing_is_written(here, changes, message):
    with pytest.raises(NmtError, match=message):
        preprocess(config(**changes))
    assert [file.name for file in here.iterdir()] == ["corpus"]


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
    with pytest.raises(NmtError, match=r"train.de: line 101 is not UTF-8; mend it or set on_inv"):
        preprocess(config())
    assert preprocess(config(on_invalid_utf8="replace")).splits["train"].pairs == 101


def test_an_interrupted_run_leaves_nothing_behind(here, monkeypatch):
    def interrupt(self, lines):
        raise KeyboardInterrupt

    monkeypatch.setattr(Subwords, "encode_target", interrupt)
    with pytest.raises(KeyboardInterrupt):
        preprocess(config())
    assert [file.name for file in here.iterdir()] == ["corpus"]


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


def test_the_defaults_in_the_help_are_those_of_the_recipe():
    text = " ".join(run("preprocess --help").stdout.split())
    for flag in ("vocab-size", "model-type", "output-dir", "workers", "seed"):
        default = getattr(PreprocessConfig(), flag.replace("-", "_"))
        _, _, about = text.partition(f"--{flag} ")
        assert f"Default: {default}" in about.split(" --")[0]

"""Word alignments from Pharaoh files to a dataset: each pair keeps its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command

from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError
from nmt.preprocess import corpus
from nmt.preprocess.binarize import preprocess
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build
from nmt.subwords.subwords import Subwords

Link = tuple[int, int]
SOURCE = ["one", "two,", "three", "fourteen", "fifty-one", "six", "“seven”", "ﬁve"]
TARGET = ["eins", "zwei,", "drei", "vierzehn", "einundfünfzig", "sechs", "«sieben»", "fünf"]


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    sides = []
    for words in (SOURCE, TARGET):
        sides.append([" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(count)])
    return list(zip(*sides, strict=True))


def links_of(source: str, target: str) -> list[Link]:
    """Links that depend on the words alone, so that any other pair has other ones."""
    return [
        (s, t)
        for s, word in enumerate(source.split())
        for t, other in enumerate(target.split())
        if SOURCE.index(word) % 3 == TARGET.index(other) % 4
    ]


def pharaoh(links: list[Link]) -> str:
    return " ".join(f"{source}-{target}" for source, target in links)


def write(prefix: str, text: list[tuple[str, str]]) -> None:
    columns = [*zip(*text, strict=True), [pharaoh(links_of(*pair)) for pair in text]]
    for suffix, lines in zip(("en", "de", "align"), columns, strict=True):
        Path(f"{prefix}.{suffix}").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = pairs(120, seed=1)
    write("train", text + text[:30] + [(" ".join(SOURCE * 9), "eins")])
    write("valid", pairs(5, seed=2))
    return tmp_path


def config(**settings: Any) -> PreprocessConfig:
    basic = {"source_lang": "en", "target_lang": "de", "train": ("train",), "valid": "valid"}
    small = {"vocab_size": 340, "workers": 1, "alignments": True}
    return build(PreprocessConfig, {**basic, **small, **settings}, "preprocess")


def stored(path: str = "data-bin") -> list[tuple[str, str, list[Link]]]:
    """The text of all training pairs, and their links."""
    dataset = Dataset.open(Path(path))
    split, subwords = dataset.split("train"), Subwords.from_dataset(dataset)
    split.check()
    numbers = split.links(np.arange(len(split)))
    rows = np.split(numbers.tokens.reshape(-1, 2), np.cumsum(numbers.lengths // 2)[:-1])
    text = (
        subwords.decode_source([split.source(at).tolist() for at in range(len(split))]),
        subwords.decode_target([split.target(at).tolist() for at in range(len(split))]),
    )
    return [
        (source, target, [(int(s), int(t)) for s, t in links])
        for source, target, links in zip(*text, rows, strict=True)
    ]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two processes": {"workers": 2},
    "own vocabularies": {"separate_vocabularies": True, "vocab_size": 300},
    "unigram": {"model_type": "unigram", "vocab_size": 300},
    "cleaned": {"clean": ["punctuation", "duplicates"], "max_tokens_per_sentence": 20},
    "sampled": {"train": [{"path": "train", "weight": 1.5}, {"path": "train", "max_pairs": 7}]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_stored_pair_has_its_own_links(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(corpus.Bitext.blocks, "__defaults__", (17, 0))
    preprocess(config(normalization="identity", **SETTINGS[name]))
    found = stored()
    assert len(found) > 60
    plain = {'"seven"': "“seven”", '"sieben"': "«sieben»"}
    for source, target, links in found:
        given = [
            " ".join(plain.get(word, word) for word in side.split()) for side in (source, target)
        ]
        assert links == links_of(given[0], given[1])


def test_shards_hold_the_links_of_their_pairs(here: Path) -> None:
    for number in (1, 2, 3):
        preprocess(config(normalization="identity", shard=f"{number}/3"))
    whole = stored()
    assert len(whole) == 151
    assert all(links == links_of(source, target) for source, target, links in whole)
    split = Dataset.open(Path("data-bin")).split("train")
    some = np.array([150, 3, 77, 3])
    chosen = [np.array(whole[at][2], np.int64).ravel() for at in some]
    read = split.links(some)
    assert read.tokens.tolist() == np.concatenate(chosen).tolist()


def test_columns_of_a_tsv_and_of_stdin_are_those_of_files(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [Path(f"train.{suffix}").read_text().splitlines() for suffix in ("en", "de", "align")]
    rows = "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))
    Path("train.tsv").write_text(rows)
    preprocess(config())
    from_files = Dataset.open(Path("data-bin")).manifest.files
    for train in ("train.tsv", "-"):
        with Path("train.tsv").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            preprocess(config(train=(train,)))
        assert Dataset.open(Path("data-bin")).manifest.files == from_files


def test_a_pair_keeps_no_links_where_its_words_change(here: Path, capfd: Any) -> None:
    other = ("one one one one", "eins")
    write("train", [("one two,", "eins"), ("six six", "drei drei"), other] * 20)
    # Python divides the last line into four words, too, but U+0085 ends no word of the model.
    changes = {"six six": "si\u200bx six", other[0]: "one\x85one one \x85 one"}
    sources = Path("train.en").read_text()
    for given, changed in changes.items():
        sources = sources.replace(given, changed)
    Path("train.en").write_text(sources)
    preprocess(config(vocab_size=282))
    found = {(source, bool(links)) for source, _, links in stored()}
    assert found == {("one two,", True), ("si x six", False), (changes[other[0]], False)}
    assert "word alignments: 20 of 60 training pairs have links" in capfd.readouterr().err


def test_a_dataset_without_alignments_is_as_before(here: Path) -> None:
    preprocess(config(alignments=False))
    dataset = Dataset.open(Path("data-bin"))
    assert not dataset.split("train").has_links
    assert not [name for name in dataset.manifest.files if "link" in name]
    before = dict(dataset.manifest.files)
    preprocess(config())
    after = Dataset.open(Path("data-bin"))
    assert after.split("train").has_links
    assert not after.split("valid").has_links
    assert before.items() <= after.manifest.files.items()


LINES = {
    "0-0 1-x": 'train.align:2: "1-x" is not a link; write S-T',
    "0-0 -": 'train.align:2: "-" is not a link; write S-T',
    "0-0 0-9": "train.align:2: the link 0-9 is out of range: the source has 2 words and the target "
    "1; number the words of this very text, from 0",
    "7-0": "train.align:2: the link 7-0 is out of range",
    "0-0\n\n": "train.en has 3 lines, but train.align has 5; line n must hold the links of pair n",
}


@pytest.mark.parametrize("line", LINES)
def test_what_is_wrong_is_said_in_a_line(here: Path, nmt: Command, line: str) -> None:
    write("train", [("one two,", "eins")] * 3)
    Path("train.align").write_text(f"0-0\n{line}\n\n")
    options = "preprocess -s en -t de --train train --valid valid --vocab-size 280 --alignments"
    done = nmt(*options.split())
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert LINES[line] in done.err
    assert not Path("data-bin").exists()


def test_missing_alignments_are_said_in_a_line(here: Path) -> None:
    Path("train.align").unlink()
    with pytest.raises(NmtError, match=r"alignments: no such file: train\.align, .*nmt align"):
        preprocess(config())
    Path("train.tsv").write_text("one\teins\n")
    with pytest.raises(NmtError, match=r"train\.tsv: line 1 has 2 columns instead of 3; .* links"):
        preprocess(config(train=("train.tsv",)))
    write("train", [("one", "zwei,")] * 20)
    with pytest.raises(NmtError, match="no training pair has a link left"):
        preprocess(config(vocab_size=280))


def test_possible_links_count_and_links_count_once(here: Path) -> None:
    write("train", [("one two,", "eins drei")] * 20)
    for line in ("1?1 0-0 1-1  0-0", " 1-1 0-0\t0-0 "):
        Path("train.align").write_text(f"{line}\n" * 20)
        preprocess(config(vocab_size=282))
        assert stored()[0][2] == [(0, 0), (1, 1)]


@pytest.fixture
def aligned(tmp_path: Path) -> Path:
    with staging(tmp_path / "data") as directory:
        writer = DatasetWriter(directory, ("en", "de"), (10, 20))
        with writer.split("train", has_links=True) as split:
            split.append(
                RaggedArray.from_sentences([[5, 6], [7]]), RaggedArray.from_sentences([[8], [9, 4]])
            )
            split.append_links(RaggedArray.from_lists([[0, 0, 1, 0], []]))
        writer.finish(shared_vocabulary=False, recipe={})
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train.link_offsets", [0, 3, 2], "the links of a pair are outside of their file"),
        ("train.link_offsets", [1, 2, 2], "the first pair does not start at 0"),
        ("train.link_offsets", [0, 1, 1], "pairs end at link 1 of 2"),
        ("train.links", [0, 0, 1, 1], "the content has changed"),
    ],
)
def test_damaged_links_are_refused(
    aligned: Path, name: str, values: list[int], message: str
) -> None:
    (aligned / name).write_bytes(np.array(values, "<u2" if "links" in name else "<i8").tobytes())
    with pytest.raises(NmtError, match=rf"{name}.*{message}.*make the dataset again"):
        Dataset.open(aligned).split("train").check()

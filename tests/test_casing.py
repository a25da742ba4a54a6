"""Inline casing: marks in the place of upper case, which decoding undoes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from for_each import for_each

from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.directions import Directions
from nmt.data.vocabulary import EOS
from nmt.data.writer import DatasetWriter, staging
from nmt.inference import Request
from nmt.subwords.casing import CAPITALS, MARKS, TITLE, UPPER, in_lower_case
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.segmenters import SentencePiece
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import tagged, without_tags
from nmt.subwords.wrappers import TokenOrder
from nmt.training.augmentation import SampledSplit

Command = Callable[..., Any]

TEXT = [
    f"{start} {verb} {end}"
    for start in ("The old man", "Ann", "The NATO", "A girl", "Ein Straßenfest")
    for verb in ("sees", "mends", "greets")
    for end in ("the iPhone .", "Bob .", "a house in Berlin !", "the EU .")
]


@for_each(
    ("line", "text", "marks"),
    [
        ("the old man", "the old man", {}),
        ("The old Man", "the old man", {0: TITLE, 2: TITLE}),
        ("the EU and NATO", "the eu and nato", {1: UPPER, 3: UPPER}),
        ("THE OLD MAN, AGED 7!", "the old man, aged 7!", {0: CAPITALS}),
        ("A man", "a man", {0: TITLE}),
        ("NATO", "nato", {0: UPPER}),
        ("(Ann) and \u201eBob\u201c", "(ann) and \u201ebob\u201c", {0: TITLE, 2: TITLE}),
        ("my iPhone and McDonald", "my iPhone and McDonald", {}),
        ("T-Shirt", "T-Shirt", {}),
        ("STRASSE oder Straße", "strasse oder straße", {0: UPPER, 2: TITLE}),
        ("\u0130stanbul und \u1e9e", "\u0130stanbul und \u1e9e", {}),
        ("\u0130STANBUL", "\u0130stanbul", {0: UPPER}),
        ("日本 ١٢", "日本 ١٢", {}),
        ("  Ann\u00a0sees ", "  ann\u00a0sees ", {0: TITLE}),
        ("", "", {}),
    ],
)
def test_words_are_in_lower_case_if_a_mark_restores_them(
    line: str, text: str, marks: dict[int, str]
) -> None:
    assert in_lower_case(line) == (text, marks)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def subwords(request: pytest.FixtureRequest) -> Subwords:
    size = 340 if request.param == "bpe" else 298
    settings = SubwordTraining(vocab_size=size, model_type=request.param, casing="inline")
    return Subwords(train_subwords(TEXT, settings, tags=[">>de<<"]), num_threads=1)


def test_a_word_has_the_same_pieces_in_any_case(subwords: Subwords) -> None:
    lower, title, upper, capitals = subwords.encode_source(
        ["the old man greets", "The Old Man Greets", "THE OLD man GREETS", "THE OLD MAN GREETS"]
    )
    marks = {piece: subwords.source_pieces(lower + title + upper + capitals) for piece in MARKS}
    assert all(piece in pieces for piece, pieces in marks.items())
    ids = {token for token in title + upper + capitals if token not in lower}
    assert {*subwords.source_pieces([*ids])} == {*MARKS}
    for row in (title, upper, capitals):
        assert [token for token in row if token not in ids] == lower
    assert capitals[1:] == lower
    assert subwords.source.tags == {">>de<<": subwords.source.tags[">>de<<"]}


def lines(seed: int, count: int = 2000) -> list[str]:
    """Random text with letters that have no single or no other case, and odd spaces."""
    draw = random.Random(seed)
    letters = "aBcßÄöİıſǅσΣςŉﬁĲⅷⓐ日1.-'…½\u00a8\u200b\u200c\u00a0\u3000▁\t  \x85\x1c\x1d\x1e\x1f\0"
    parts = [*letters, "  ", "e\u0301", "A\u0308", "J\u030c", "Ann", "Bob\x85", "NATO", "E\u0301te"]
    some = ["".join(draw.choices(parts, k=draw.randint(0, 12))) for _ in range(count)]
    return some + [line.upper() for line in TEXT] + [line.title() for line in TEXT] + TEXT


def test_symbols_with_upper_case_stay_as_they_are() -> None:
    symbols = ("<NUM>", "Ent1")
    training = SubwordTraining(vocab_size=340, casing="inline", user_defined_symbols=symbols)
    subwords = Subwords(train_subwords(TEXT, training), None, 1)
    for line in ("the <NUM> Old man", "A <NUM>'s Ent1 MAN", "THE <NUM> OLD MAN", "<NUM> Ent1"):
        [ids] = subwords.encode_source([line])
        assert "<NUM>" in subwords.source.pieces(ids)
        assert subwords.source.decode([ids]) == [line]
    title, upper, capitals = (subwords.source._ids[mark] for mark in MARKS)
    [ids] = subwords.encode_source(["<NUM> Ent1 man"])
    for mark, expected in (
        (title, "<NUM> Ent1 man"),
        (upper, "<NUM> Ent1 man"),
        (capitals, "<NUM> Ent1 MAN"),
    ):  # that a model may write in any place
        assert subwords.source.decode([[mark, *ids]]) == [expected]
    with pytest.raises(ValueError, match="with spaces need casing none"):
        SubwordTraining(casing="inline", user_defined_symbols=("New York",))
    with pytest.raises(ValueError, match=r"nfkc_cf folds case .*; use nfkc$"):
        SubwordTraining(casing="inline", normalization="nfkc_cf")


def test_decoding_restores_what_the_model_would_restore_without_marks(subwords: Subwords) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    plain = SentencePiece(subwords.models[0])
    text = lines(seed)
    expected = plain.decode(plain.encode(text))
    ids = subwords.encode_source(text)
    assert subwords.decode_source(ids) == [line.replace("\n", " ") for line in expected]
    for line, row in zip(text, ids, strict=True):  # alone as among others
        assert subwords.encode_source([line]) == [row]


def test_marks_stand_before_words_as_the_model_divides_them(subwords: Subwords) -> None:
    for line, text in (
        ("wait\x85what about Bob \x85 Ann", "wait\x85what about Bob \x85 Ann"),
        ("see \x1c Bob", "see Bob"),
        ("a\x1fBob EU", "aBob EU"),
        ("a\u200bBob\u00a0Ann", "a Bob Ann"),
        ("E\u0301te  BO\u0301B", "\u00c9te B\u00d3B"),
    ):
        [ids] = subwords.encode_source([line])
        assert subwords.decode_source([ids]) == [text]
        marked = [word for word in text.split(" ") if word != word.lower() and word != "aBob"]
        assert sum(piece in MARKS for piece in subwords.source_pieces(ids)) == len(marked)


def test_every_token_has_an_offset(subwords: Subwords) -> None:
    text = lines(1)
    ids = subwords.encode_source(text)
    for row, line, offsets in zip(ids, text, subwords.source_offsets(text), strict=True):
        assert len(offsets) == len(row)
        assert offsets == sorted(offsets)
        assert all(0 <= offset <= len(line) for offset in offsets)
    for row, offsets in zip(ids, subwords.target_offsets(ids), strict=True):
        assert len(offsets) == len(row)
        assert offsets == sorted(offsets)
    for line, title, upper in (("Ann GEHT", 0, 3), (" A\x1cnn \u200b GEHT", 1, 5)):
        [row], [offsets] = subwords.encode_source([line]), subwords.source_offsets([line])
        begins = dict(zip(subwords.source_pieces(row), offsets, strict=True))
        assert (begins[TITLE], begins[UPPER]) == (title, upper)


def test_capital_letters_may_be_more_than_small_ones(subwords: Subwords) -> None:
    [row] = subwords.encode_target(["Straßenfest mends"])
    upper = subwords.encode_target(["A B"])[0][0]
    row = [upper, *(token for token in row if subwords.target_pieces([token]) != [TITLE])]
    assert subwords.decode_target([row]) == ["STRASSENFEST MENDS"]
    offsets = subwords.target_offsets([row])[0]
    mends = subwords.target_pieces(row).index(
        next(piece for piece in subwords.target_pieces(row)[4:] if piece.startswith("▁m"))
    )
    assert offsets[mends] == len("STRASSENFEST")


def test_marks_where_no_text_has_them_do_no_harm(subwords: Subwords) -> None:
    [title, upper, capitals] = (
        token
        for mark in MARKS
        for token in range(subwords.source_size)
        if subwords.source_pieces([token]) == [mark]
    )
    [man] = subwords.encode_target(["man"])
    text = subwords.decode_target
    assert text([[upper, title, *man, upper]]) == ["MAN"]
    assert text([[title, title, *man], [title, title, title, *man]]) == ["Man", "Man"]
    assert text([[title]]) == [""]
    assert text([[], [upper, *man, EOS]]) == ["", "MAN"]
    assert text([[*man, capitals, *man, title, *man]]) == ["man MAN MAN"]
    assert text([]) == []


@pytest.mark.parametrize("order", ["left_to_right", "right_to_left"])
def test_phrases_in_capitals_leave_the_rest_of_the_line_as_it_is(
    subwords: Subwords, order: TokenOrder
) -> None:
    ordered = subwords.in_order(order)
    ordered.directions = Directions(tags="target", trained=(("en", "de"), ("en", "fr")))
    directed = tagged(ordered, ("en", "de"))
    request = Request("a", phrases=("NATO EU",), avoid=("THE BOB", "man"))
    sentence = request.encode([EOS], directed)
    [nato], [rest] = sentence.phrases, directed.encode_phrases(["the man"])
    row = [*rest, *nato, *rest]
    assert directed.decode_target([row]) == ["the man NATO EU the man"]
    [line] = ordered.encode_target(["Ann sees THE BOB ."])
    avoided = [*sentence.avoided[0]]
    assert any(line[at : at + len(avoided)] == avoided for at in range(len(line)))
    assert sentence.prefix == directed.tags[1]


@pytest.mark.parametrize(
    ("line", "rest"), [("a man", "the man"), ("A MAN", "THE MAN"), ("the NATO", "the man")]
)
def test_a_beginning_in_capitals_is_that_of_a_line_in_capitals_alone(
    subwords: Subwords, line: str, rest: str
) -> None:
    request = Request(line, prefix="NATO EU")
    sentence = request.encode([EOS], subwords)
    [others] = subwords.encode_target(["the man"])
    assert subwords.decode_target([[*sentence.prefix, *others]]) == [f"NATO EU {rest}"]


def test_tags_and_sampled_subwords_go_with_marks(subwords: Subwords, tmp_path: Path) -> None:
    subwords.directions = None
    directed = tagged(subwords, ("en", "de"))
    ids = directed.encode_source(TEXT)
    assert directed.decode_source(ids) == TEXT
    tag, rest = without_tags(subwords.source, ids[0])
    assert len(tag) == 1
    assert subwords.decode_source([rest]) == TEXT[:1]
    with staging(tmp_path / "data") as directory:
        subwords.save(directory)
        writer = DatasetWriter(directory, ("en", "de"), (subwords.source_size,) * 2)
        with writer.split("train") as out:
            out.append(
                RaggedArray.from_sentences(ids),
                RaggedArray.from_sentences(subwords.encode_target(TEXT)),
            )
        writer.finish(shared_vocabulary=True, recipe={})
    split = Dataset.open(tmp_path / "data").split("train")
    again = Subwords.from_dataset(Dataset.open(tmp_path / "data"), 1)
    sampled = SampledSplit(split=split, subwords=again, alpha=0.1, seed=1)
    rows = sampled.padded("source", np.arange(len(TEXT)))
    assert again.decode_source([[*filter(None, row)] for row in rows[:, 1:].tolist()]) == TEXT
    assert not np.array_equal(rows, split.padded("source", np.arange(len(TEXT))))


def test_a_run_translates_with_marks(
    nmt: Command, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    for split in ("train", "valid"):
        for language in ("en", "de"):
            text = (corpus / f"{split}.{language}").read_text().splitlines()
            cased = (line.upper() if n % 3 else line.capitalize() for n, line in enumerate(text))
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in cased))
    places = (f"--train={tmp_path}/train", f"--valid={tmp_path}/valid", "--output-dir")
    keys = ("--set", "preprocess.casing=inline")
    assert nmt("preprocess", "--config", recipe, *places, tmp_path / "data", *keys).status == 0
    run = tmp_path / "run"
    made = nmt("train", "--config", recipe, "--data", tmp_path / "data", "--save-dir", run)
    assert made.status == 0, made.err
    (tmp_path / "in").write_text("ONE TWO\nOne two\n\n")
    done = nmt("translate", "--model", run, tmp_path / "in")
    assert done.status == 0, done.err
    assert len(done.out.splitlines()) == 3
    (tmp_path / "out").write_text("Two ONE two!\n\n")
    (tmp_path / "in").write_text("One two\n\n")
    flags = ("score", tmp_path / "out", "--model", run, "--source", tmp_path / "in", "--json")
    first, last = map(json.loads, nmt(*flags).out.splitlines())
    assert first["words"] == ["Two", "ONE", "two!"]
    total = sum(first["word_log_probabilities"]) + first["token_log_probabilities"][-1]
    assert total == pytest.approx(first["log_probability"])
    assert first["tokens"].index(TITLE) == 0
    title, two = first["token_log_probabilities"][:2]
    if first["tokens"][2] == UPPER:
        assert first["word_log_probabilities"][0] == pytest.approx(title + two)
    assert (last["words"], last["word_log_probabilities"]) == ([], [])
    for name in ("marian", "huggingface"):
        refused = nmt("export", "--model", run, "--format", name, "--output", tmp_path / name)
        assert refused.status == 1
        assert "preprocess.casing inline" in refused.err
    given = ("--subword-model", tmp_path / "data")
    again = nmt("preprocess", "--config", recipe, *places, tmp_path / "again", *given)
    assert again.status == 0, again.err
    tokens = (path / "train.de.tokens" for path in (tmp_path / "data", tmp_path / "again"))
    assert len({path.read_bytes() for path in tokens}) == 1

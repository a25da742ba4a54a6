"""Pairs that are changed anew in each epoch: a function of seed, epoch and pair alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from trained_runs import assert_resumes_as_if_it_never_stopped

from nmt.data.batches import make_batch
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.directions import Directions
from nmt.data.vocabulary import UNK
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import tagged
from nmt.training.augmentation import Augmentation, Pair, SampledSplit, augmentations
from nmt.training.augmented_split import AugmentedSplit

PAIR = ("The iron house isn't big .", "Das Haus aus Eisen ist nicht groß .")
NOUNS = ("house", "boat", "tree", "work", "shop", "garden")
TEXT = [f"Ann sees the {one} and the {two} ." for one in NOUNS for two in NOUNS]


def changed(name: str, seed: int = 1, pair: Pair = PAIR, **fields: Any) -> Pair:
    entry = replace(augmentations[name], **fields)
    return entry.apply(pair, np.random.default_rng(seed), lambda: ("And then .", "Und dann ."))


def test_upper_case_and_title_case_change_both_sides() -> None:
    assert changed("upper_case") == (
        "THE IRON HOUSE ISN'T BIG .",
        "DAS HAUS AUS EISEN IST NICHT GROSS .",
    )
    assert changed("title_case") == (
        "The Iron House Isn't Big .",
        "Das Haus Aus Eisen Ist Nicht Groß .",
    )


def test_merged_sentences_stand_behind_each_other_but_not_a_copy() -> None:
    merged = changed("merged_sentences")
    assert merged == (f"{PAIR[0]} And then .", f"{PAIR[1]} Und dann .")
    copy = augmentations["merged_sentences"].apply(PAIR, np.random.default_rng(1), lambda: PAIR)
    assert copy == PAIR


def test_noise_is_the_same_word_on_both_sides() -> None:
    lengths = set()
    for seed in range(50):
        source, target = changed("noise", seed, characters="xyz", max_length=3)
        word = source.removeprefix(f"{PAIR[0]} ")
        assert target == f"{PAIR[1]} {word}"
        lengths.add(len(word))
        assert set(word) <= {*"xyz"}
    assert lengths == {1, 2, 3}


def test_typos_are_one_edit_of_some_words_of_the_source() -> None:
    seen = set()
    for seed in range(300):
        source, target = changed("typos", seed, rate=0.3)
        assert target == PAIR[1]
        words, correct = source.split(" "), PAIR[0].split(" ")
        assert len(words) == len(correct)
        for word, whole in zip(words, correct, strict=True):
            if word != whole:
                seen.add(whole)
                assert abs(len(word) - len(whole)) <= 1
                assert word[0].isupper() or whole[0].islower() or word[0] in "hH"
        assert "." in words
    assert seen == {"The", "iron", "house", "isn't", "big"}
    assert changed("typos", rate=0.0) == PAIR
    share = np.mean([changed("typos", seed, rate=0.3) != PAIR for seed in range(300)])
    assert 0.7 < share < 1  # of five words that can be misspelt


def test_a_typo_leaves_doubles_replaces_or_swaps_a_letter_and_keeps_its_case() -> None:
    def typos(text: str) -> set[str]:
        return {changed("typos", seed, (text, ""), rate=1.0)[0] for seed in range(200)}

    first, second = {"ac", "abbc", "aac", "acc", "bac"}, {"ab", "abcc", "aba", "abb", "acb"}
    assert typos("abc") == {"abc", *first, *second}
    assert typos("x, Ab!") == {"x, A!", "x, Abb!", "x, Ax!", "x, Aa!", "x, Ab!", "x, bA!"}
    assert typos("x AB") == {"x A", "x ABB", "x AX", "x AA", "x AB", "x BA"}


@for_each("name", augmentations)
def test_every_augmentation_takes_any_text_and_is_a_function_of_its_random_numbers(
    name: str,
) -> None:
    for pair in (PAIR, ("", ""), ("a", "7"), ("日本 語", "ἄ 1 \u0130"), ("  ", "x  y")):
        one, two = (changed(name, 3, pair) for _ in range(2))
        assert one == two
        for before, after in zip(pair, one, strict=True):  # what is added stands behind
            assert len(after.split(" ")) >= len(before.split(" "))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> AugmentedSplit:
    """A split in which nothing is augmented yet: two directions, and a sentence with UNK."""
    path = tmp_path_factory.mktemp("augmented") / "data"
    settings = SubwordTraining(vocab_size=150, byte_fallback=False)
    cases = [*TEXT, *map(str.upper, TEXT), *map(str.title, TEXT)]
    directions = Directions(trained=(("en", "de"), ("en", "fr")))
    model = train_subwords(cases, settings, tags=[">>de<<", ">>fr<<"])
    subwords = Subwords(model, directions=directions)
    with staging(path) as directory:
        subwords.save(directory)
        writer = DatasetWriter(directory, ("en", "de+fr"), (subwords.source_size,) * 2)
        with writer.split("train", has_directions=True) as out:
            for number, direction in enumerate(directions.trained):
                lines = [*TEXT, "Ann sees % .", " ".join(TEXT[:3])]
                source = tagged(subwords, direction).encode_source(lines)
                target = subwords.encode_target(lines[::-1])
                out.append(
                    RaggedArray.from_sentences(source), RaggedArray.from_sentences(target), number
                )
        writer.finish(shared_vocabulary=True, recipe={})
    train = Dataset.open(path).split("train")
    return AugmentedSplit(split=train, subwords=subwords, augmentations=(), seed=1)


def with_all(
    split: AugmentedSplit, *chosen: str, share: float = 1.0, **more: Any
) -> AugmentedSplit:
    entries = tuple(replace(augmentations[name], share=share) for name in chosen)
    return replace(split, augmentations=entries, **more)


def sentences(split: Any) -> list[tuple[list[int], list[int]]]:
    count = range(len(split.source_lengths))
    return [(split.source(index).tolist(), split.target(index).tolist()) for index in count]


def test_a_pair_is_changed_alike_wherever_it_is_and_otherwise_in_each_epoch(
    split: AugmentedSplit,
) -> None:
    noisy = with_all(split, "typos", "noise", share=0.5)
    first = sentences(noisy)
    assert sentences(with_all(split, "typos", "noise", share=0.5)) == first
    assert sentences(replace(noisy, epoch=1)) != first != sentences(replace(noisy, seed=2))
    for side, place in (("source", 0), ("target", 1)):
        some = np.array([5, 60, 2])
        rows = noisy.padded(side, some).tolist()  # type: ignore[arg-type]
        whole = [first[index][place] for index in some]
        assert [row[: len(ids)] for row, ids in zip(rows, whole, strict=True)] == whole


def test_a_batch_changes_each_of_its_pairs_once(
    split: AugmentedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    change = AugmentedSplit._pair
    monkeypatch.setattr(
        AugmentedSplit,
        "_pair",
        lambda split, index: (counted.append(index), change(split, index))[1],
    )
    changed = with_all(split, "typos")
    sampled = SampledSplit(split=changed, subwords=split.subwords, alpha=0.1, seed=1)
    for sentences_of_epoch in (changed, sampled):
        counted.clear()
        indices = np.arange(len(split.split))
        make_batch(sentences_of_epoch, indices)
        assert counted == indices.tolist()
    assert changed.target(0).tolist() == sentences(changed)[0][1]  # also without its source


def test_the_share_of_changed_pairs_is_that_of_the_recipe(split: AugmentedSplit) -> None:
    stored = sentences(split)
    for share in (0.0, 0.25, 1.0):
        epochs = [
            sentences(with_all(split, "upper_case", share=share, epoch=epoch))
            for epoch in range(20)
        ]
        same = [one == two for epoch in epochs for one, two in zip(epoch, stored, strict=True)]
        can_change = 36 / 38  # not the sentence with UNK and its partner, nor the longest one
        assert 1 - np.mean(same) == pytest.approx(share * can_change, abs=0.06)


def test_tags_stay_and_sentences_of_other_tags_are_not_merged(split: AugmentedSplit) -> None:
    merged = with_all(split, "merged_sentences")
    subwords, last = split.subwords, 37
    for index in (5, 45):
        tag = split.split.source(index)[0]
        assert merged.source(index)[0] == tag
        [text] = subwords.decode_source([merged.source(index).tolist()[1:]])
        assert text == f"{TEXT[index % 38]} {TEXT[index % 38 + 1]}"
    for index in (35, last, len(split.split) - 1):  # before UNK, another tag, and nothing
        assert np.array_equal(merged.source(index), split.split.source(index))


def test_a_pair_without_weight_is_not_merged_with_the_one_before(
    split: AugmentedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = with_all(split, "merged_sentences")
    weights = np.ones(len(split.split), np.float32)
    weights[6] = 0
    monkeypatch.setitem(vars(split.split), "weights", weights)
    assert np.array_equal(merged.source(5), split.split.source(5))
    assert not np.array_equal(merged.source(4), split.split.source(4))


def test_a_pair_that_would_be_too_long_or_unknown_stays_as_it_is(split: AugmentedSplit) -> None:
    for name in ("merged_sentences", "noise"):
        long = with_all(split, *[name] * 9)
        assert sentences(long) == sentences(split)
    unknown = replace(augmentations["noise"], share=1.0, characters="%")  # type: ignore[call-arg]
    assert sentences(replace(split, augmentations=(unknown,))) == sentences(split)
    assert any(UNK in source for source, _ in sentences(split))


def test_changed_text_is_segmented_anew(split: AugmentedSplit) -> None:
    upper = with_all(split, "upper_case")
    sampled = SampledSplit(split=upper, subwords=split.subwords, alpha=0.3, seed=1)
    indices = np.arange(2, 30)
    rows = sampled.padded("source", indices)
    assert not np.array_equal(rows, upper.padded("source", indices))
    for row, index in zip(rows.tolist(), indices, strict=True):
        [text] = split.subwords.decode_source([row])
        assert text.endswith(TEXT[index].upper())


def test_a_resumed_run_with_augmentation_is_the_one_that_never_stopped(
    train: Any, tmp_path: Path
) -> None:
    chosen = "train.augmentation=[typos, {name: merged_sentences, share: 0.3}]"
    assert_resumes_as_if_it_never_stopped(train, tmp_path, "--set", chosen)


@for_each(
    ("values", "problem"),
    [
        ("tpyos", "unknown augmentation 'tpyos'; did you mean 'typos'?"),
        ({"name": "typos", "share": 1.5}, r"share lies in \[0, 1\], not 1.5"),
        ({"name": "typos", "rate": -1}, r"rate lies in \[0, 1\], not -1"),
        ({"name": "noise", "characters": " "}, "noise needs characters"),
        ({"name": "upper_case", "rate": 1}, "typos has it"),
    ],
)
def test_a_mistake_costs_one_line(values: Any, problem: str) -> None:
    builder: Callable[..., Any] = build
    with pytest.raises(NmtError, match=problem):
        builder(Augmentation, values, "train.augmentation")

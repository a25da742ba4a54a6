"""Translations learned by IBM model 1."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

from nmt.data.dataset import Dataset
from nmt.data.vocabulary import EOS
from nmt.preprocess.alignment import lexicon
from nmt.preprocess.alignment.lexicon import (
    Lexicon,
    LexiconConfig,
    Pairs,
    learn_shortlist,
    measured,
)

A, B, X, Y = 4, 5, 4, 5


def pairs(*given: tuple[list[int], list[int]]) -> Pairs:
    sources, targets = ([np.array([*it, EOS]) for it in side] for side in zip(*given, strict=True))
    return Pairs.from_sentences(sources, targets)


def probabilities(found: Lexicon) -> dict[tuple[int, int], float]:
    cells = zip(found.sources.tolist(), found.targets.tolist(), strict=True)
    return dict(zip(cells, found.probabilities.tolist(), strict=True))


def test_two_pairs_by_hand() -> None:
    # "a b" is "x y", and "a" is "x". First each token of a source gives each target as likely, so
    # of x the first pair counts 1/3 for a, and the second 1/2: 5/6; and of y 1/3.
    corpus = pairs(([A, B], [X, Y]), ([A], [X]))
    once = probabilities(Lexicon.learn(corpus, 6, iterations=1))
    assert once == pytest.approx(
        {
            (A, X): 5 / 7,
            (A, Y): 2 / 7,
            (B, X): 1 / 2,
            (B, Y): 1 / 2,
            (EOS, X): 5 / 7,
            (EOS, Y): 2 / 7,
        }
    )
    # Then the first pair counts (5/7) / (5/7 + 1/2 + 5/7) = 10/27 of x for a, and 4/15 of y.
    twice = probabilities(Lexicon.learn(corpus, 6, iterations=2))
    assert twice[A, X] == pytest.approx(235 / 307)
    assert twice[B, X] == pytest.approx(5 / 14)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_model_1_however_the_work_is_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    corpus = [
        (
            [draw.randint(4, 8) for _ in range(draw.randint(1, 5))],
            [draw.randint(4, 9) for _ in "ab"],
        )
        for _ in range(12)
    ]
    monkeypatch.setattr(lexicon, "CELLS", 20)  # two target ids
    monkeypatch.setattr(lexicon, "LINKS", 7)
    found = probabilities(Lexicon.learn(pairs(*corpus), 9, iterations=3))
    expected = {(s, t): Fraction(1) for s in range(9) for t in range(10)}
    for _ in range(3):
        counts = dict.fromkeys(expected, Fraction(0))
        for source, target in corpus:
            ended = [*source, EOS]
            for t in target:
                whole = sum(expected[s, t] for s in ended)
                for s in ended:
                    counts[s, t] += expected[s, t] / whole
        totals = [sum(counts[s, t] for t in range(10)) or 1 for s in range(9)]
        expected = {(s, t): count / totals[s] for (s, t), count in counts.items()}
    assert found == pytest.approx({cell: float(it) for cell, it in expected.items() if it})


def test_rare_words_of_a_large_vocabulary_share_their_blocks() -> None:
    words = range(4, 100_004)  # each once, beside itself and EOS
    corpus = pairs(*[([word], [word]) for word in words])
    blocks = list(corpus.blocks(num_sources=100_004))
    assert [last for _, last in blocks[:-1]] == [first for first, _ in blocks[1:]]
    assert (blocks[0][0], blocks[-1][1]) == (0, 100_004)
    # A block of n words has n rows and 2n columns; with a column for each word it would have 41.
    assert len(blocks) < 100_004 / 1400
    common = list(pairs(*[([word], [4]) for word in words], ([4], [7])).blocks(100_004))
    assert common == [(0, 8)]


def test_what_is_almost_never_expected_is_given_up() -> None:
    corpus = pairs(*[([A], [X])] * 30, ([A, B], [Y]))
    assert (A, Y) in probabilities(Lexicon.learn(corpus, 6, iterations=1))
    kept = probabilities(Lexicon.learn(corpus, 6, iterations=9))
    assert kept == pytest.approx({(A, X): 1, (B, Y): 1, (EOS, X): 1})


def test_the_likeliest_are_kept_and_of_equals_the_lowest() -> None:
    sources, targets = np.array([1, 0, 1, 1, 0]), np.array([9, 7, 5, 4, 6])
    table = Lexicon(sources, targets, np.array([0.2, 0.1, 0.2, 0.6, 0.9]), num_sources=3)
    assert table.best(2).tolist() == [[6, 7], [4, 5], [EOS, EOS]]
    assert table.best(4)[1].tolist() == [4, 5, 9, EOS]


def test_a_dataset_is_learned_and_measured(dataset: Path) -> None:
    opened = Dataset.open(dataset)
    learned = learn_shortlist(opened, "subwords", LexiconConfig(first=2, best=1))
    assert learned.origin.pairs == len(opened.split("train")) == 200
    counts = np.zeros(60)
    for at in range(200):
        np.add.at(counts, opened.split("train").target(at), 1)
    counts[: EOS + 1] = 0
    assert sorted(counts[learned.frequent]) == sorted(counts)[-2:]
    length, share = measured(learned, opened.split("valid"))
    everything = learn_shortlist(opened, "subwords", LexiconConfig(first=60, best=1))
    assert measured(everything, opened.split("valid")) == (60, 1.0)
    assert 6 <= length < 60
    assert 0.5 < share < 1


def test_a_sample_is_spread_over_the_pairs(dataset: Path) -> None:
    split = Dataset.open(dataset).split("train")
    sampled = Pairs.sample(split, 70)
    assert sampled.lengths.tolist() == split.source_lengths[::3].tolist()
    assert Pairs.sample(split, 200).lengths.tolist() == split.source_lengths.tolist()


@for_each("key", ["first", "best", "max_pairs", "iterations"])
def test_counts_below_one_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} must be at least 1, not 0"):
        LexiconConfig(**{key: 0})

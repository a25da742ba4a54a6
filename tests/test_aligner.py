"""Alignment of a corpus by its own words: the hidden Markov model, and symmetry."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Command

from nmt.data.columns import RaggedArray
from nmt.data.vocabulary import EOS, UNK
from nmt.evaluation.alignments import AlignmentErrorRate
from nmt.preprocess.alignment import hmm
from nmt.preprocess.alignment.aligner import (
    MAX_PAIR_WORDS,
    CorpusAligner,
    Link,
    WordNumbers,
    grow_diag_final_and,
)
from nmt.preprocess.alignment.hmm import HiddenMarkovModel
from nmt.preprocess.alignment.lexicon import Lexicon

SIZE = 9


def some_lexicon(seed: int) -> Lexicon:
    """Probabilities of all translations of four words and of NULL."""
    draw = np.random.default_rng(seed)
    sources, targets = np.meshgrid(np.arange(EOS, SIZE), np.arange(EOS + 1, SIZE), indexing="ij")
    table = draw.dirichlet(np.ones(SIZE - EOS - 1), SIZE - EOS)
    return Lexicon(sources.ravel(), targets.ravel(), table.ravel(), SIZE)


def some_pairs(seed: int, count: int = 12) -> tuple[list[list[int]], list[list[int]]]:
    draw = random.Random(seed)
    sides = [
        [[draw.randint(EOS + 1, SIZE - 1) for _ in range(draw.randint(1, 4))] for _ in range(count)]
        for _ in range(2)
    ]
    return sides[0], sides[1]


def paths(lexicon: Lexicon, source: list[int], target: list[int]) -> dict[tuple[int, ...], float]:
    """The probability of every alignment of a pair; -1 for NULL."""
    keys = zip(lexicon.sources.tolist(), lexicon.targets.tolist(), strict=True)
    table = dict(zip(keys, lexicon.probabilities.tolist(), strict=True))
    moves = {d: 1 / (1 + abs(d - 1.0)) for d in range(-9, 10)}
    words = range(len(source))
    found = {}
    for path in itertools.product(range(-1, len(source)), repeat=len(target)):
        probability, last = 1.0, -1
        for at, word in zip(path, target, strict=True):
            if at < 0:
                probability *= hmm.NULL_PROBABILITY * table[EOS, word]
                continue
            share = moves[at - last] / sum(moves[next_ - last] for next_ in words)
            move = (1 - hmm.UNIFORM) * share + hmm.UNIFORM / len(source)
            probability *= (1 - hmm.NULL_PROBABILITY) * move * table[source[at], word]
            last = at
        found[path] = probability
    total = sum(found.values())
    return {path: probability / total for path, probability in found.items()}


@pytest.mark.parametrize("cells", [1 << 18, 7])
def test_posteriors_are_sums_over_all_alignments(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hmm, "CELLS", cells)
    lexicon, (sources, targets) = some_lexicon(1), some_pairs(2)
    model = HiddenMarkovModel(lexicon, SIZE)
    aligned = model.align(RaggedArray.from_lists(sources), RaggedArray.from_lists(targets))
    for source, target, best in zip(sources, targets, aligned, strict=True):
        shares = [dict.fromkeys(range(-1, len(source)), 0.0) for _ in target]
        for path, probability in paths(lexicon, source, target).items():
            for share, word in zip(shares, path, strict=True):
                share[word] += probability
        assert best.tolist() == [max(share, key=share.__getitem__) for share in shares]


def test_an_iteration_counts_what_all_alignments_expect() -> None:
    lexicon, (sources, targets) = some_lexicon(3), some_pairs(4)
    model = HiddenMarkovModel(lexicon, SIZE)
    model.fit(RaggedArray.from_lists(sources), RaggedArray.from_lists(targets))
    counts = np.zeros((SIZE, SIZE))
    moves = np.full(2 * hmm.MAX_DISTANCE + 1, hmm.MIN_EMISSION)
    for source, target in zip(sources, targets, strict=True):
        for path, probability in paths(lexicon, source, target).items():
            last = -1
            for at, word in zip(path, target, strict=True):
                counts[EOS if at < 0 else source[at], word] += probability
                if at >= 0:
                    moves[at - last + hmm.MAX_DISTANCE] += probability
                    last = at
    expected = (counts / np.maximum(counts.sum(1, keepdims=True), 1e-99))[
        lexicon.sources, lexicon.targets
    ]
    np.testing.assert_allclose(
        model._emissions[:-1], np.maximum(expected, hmm.MIN_EMISSION), rtol=1e-9
    )
    np.testing.assert_allclose(model._moves, moves, rtol=1e-9)


def grown(one: set[Link], other: set[Link]) -> set[Link]:
    """Koehn et al. 2003, by loops over all pairs of words."""
    links, union, beside = one & other, one | other, ((-1, 0), (0, -1), (1, 0), (0, 1))
    steps = (*beside, (-1, -1), (-1, 1), (1, -1), (1, 1))
    places = [(source, target) for source in range(9) for target in range(9)]

    def has_free_word(link: Link, wanted: Callable[..., bool]) -> bool:
        return wanted(all(link[side] != it[side] for it in links) for side in (0, 1))

    count = -1
    while count < len(links):
        count = len(links)
        for source, target in places:
            for step in steps if (source, target) in links else ():
                link = source + step[0], target + step[1]
                if link in union and has_free_word(link, any):
                    links.add(link)
    for side in (one, other):
        for link in places:
            if link in side and has_free_word(link, all):
                links.add(link)
    return links


def test_symmetric_alignments_are_those_of_the_published_loops() -> None:
    draw = random.Random(1)
    for _ in range(300):
        one, other = (
            {(draw.randrange(9), draw.randrange(9)) for _ in range(draw.randint(0, 12))}
            for _ in range(2)
        )
        assert set(grow_diag_final_and(one, other)) == grown(one, other)


def test_the_symmetric_alignment_grows_from_common_links() -> None:
    one = {(0, 0), (1, 1), (2, 2), (5, 5)}
    other = {(0, 0), (1, 2), (3, 2), (5, 6), (4, 0)}
    # Common is 0-0. Beside it 1-1, beside that 1-2 and 2-2, and beside these 3-2. The words of 5-5
    # have no links, and no link beside them; then 5 has one, so 5-6 stays away, and so does 4-0.
    assert grow_diag_final_and(one, other) == [(0, 0), (1, 1), (1, 2), (2, 2), (3, 2), (5, 5)]
    # Beside 1-1 is 0-1, before the diagonal 0-0: then all words have links, but for the source 0.
    assert grow_diag_final_and({(0, 0), (1, 1)}, {(1, 1), (0, 1)}) == [(0, 0), (0, 1), (1, 1)]
    assert grow_diag_final_and(set(), {(1, 0)}) == [(1, 0)]
    assert grow_diag_final_and(set(), set()) == []


def test_a_corpus_in_reverse_order_aligns_itself(
    linked_dataset: Path, tmp_path: Path, nmt: Command
) -> None:
    prefix = linked_dataset.parent / "train"
    done = nmt("align", "--source", f"{prefix}.en", "--target", f"{prefix}.de")
    assert done.status == 0, done.err
    gold, found = Path(f"{prefix}.align").read_text().splitlines(), done.out.splitlines()
    rate = AlignmentErrorRate()
    assert rate.compute(rate.counts(found, gold, gold))[0] < 12
    links, empty = sum(len(line.split()) for line in found), found.count("")
    last = f"aligned {len(found):,} pairs: {links:,} links, {empty:,} pairs without\n"
    assert done.err.endswith(last)
    again = nmt("align", "--source", f"{prefix}.en", "--target", f"{prefix}.de")
    assert again.out == done.out
    some = nmt("align", "--source", f"{prefix}.en", "--target", f"{prefix}.de", "--max-pairs", 60)
    assert len(some.out.splitlines()) == len(found)
    assert some.out != done.out


def test_case_and_punctuation_make_no_other_word() -> None:
    pairs = [("Dogs bark.", "Hunde bellen."), ("“Cats” sleep!", "Katzen schlafen ..."), ("", "")]
    pairs += [("dogs sleep", "hunde schlafen"), ("cats bark", "katzen bellen"), (" ", "leer")]
    aligner = CorpusAligner(pairs, 100)
    found = list(aligner.align(*map(list, zip(*pairs, strict=True))))
    assert [links[:2] for links in found] == [[(0, 0), (1, 1)]] * 2 + [[]] + [
        [(0, 0), (1, 1)]
    ] * 2 + [[]]
    assert list(aligner.align(["unseen words", "x"], ["Nie gesehen", ""]))[1] == []
    assert list(CorpusAligner([], 5).align(["a"], ["b"])) == [[]]


def test_vowel_signs_and_accents_belong_to_words() -> None:
    vocabulary = WordNumbers(["का “की” के। को", "ma\u0301"])
    [ids] = vocabulary.encode(["(का) की, के को m\u00e1 क"])
    assert len({*ids}) == 6
    assert [token == UNK for token in ids] == [False] * 5 + [True]


def test_punctuation_within_a_word_takes_no_longer_than_letters() -> None:
    start = time.process_time()
    words = WordNumbers([f"a{'-' * 30_000}B... -- É."])
    assert time.process_time() - start < 2  # 10 s if the time grows with the square of the length
    [ids] = words.encode([f"«A{'-' * 30_000}b» – é"])
    assert [token == UNK for token in ids] == [False, True, False]


def test_a_pair_that_is_too_long_gets_no_links() -> None:
    aligner = CorpusAligner([("one two", "eins zwei")] * 3, 10)
    long, longest = "one two " * (MAX_PAIR_WORDS // 2 + 1), "one two " * (MAX_PAIR_WORDS // 2)
    links = aligner.align(["one two", long, "one", longest], ["eins zwei", "eins", long, "eins"])
    assert [bool(found) for found in links] == [True, False, False, True]


def test_what_cannot_be_aligned_is_said_in_a_line(tmp_path: Path, nmt: Command) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\n")
    os.mkfifo(tmp_path / "pipe")
    cases = {
        ("--source", tmp_path / "a", "--target", tmp_path / "b"): "differ in their number of lines",
        ("--source", "-", "--target", tmp_path / "b"): "read twice; give files, not a pipe",
        ("--source", tmp_path / "a", "--target", tmp_path / "pipe"): "pipe: without --model the",
        ("--source", tmp_path / "none", "--target", tmp_path / "b"): "No such file or directory;",
        ("--source", tmp_path / "a", "--target", tmp_path / "a", "--layer", 1): "give --model, too",
    }
    for flags, message in cases.items():
        done = nmt("align", *flags)
        assert (done.status, done.err.count("\n"), done.out) == (1, 1, "")
        assert message in done.err

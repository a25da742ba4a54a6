"""Minimum Bayes risk over given translations."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.errors import NmtError
from nmt.evaluation.metrics import metrics
from nmt.inference import SearchConfig
from nmt.inference.consensus import by_consensus, expected_utilities
from nmt.recipe.config import build
from nmt.search import Hypothesis


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_what_most_others_resemble_is_best(utility: str) -> None:
    candidates = ["an ant is here", "the cat sat on a mat", "the cat sat on the mat", "the cat sat"]
    values = expected_utilities(candidates, metrics[utility].for_sentences())
    assert max(values) in (values[1], values[2])
    assert min(values) == values[0]


def test_the_mean_is_over_all_candidates_and_equals_count_as_often_as_they_are_there() -> None:
    one, two = "a small house", "a house"
    chrf = CHRF()
    there = chrf.sentence_score(one, [two]).score
    back = chrf.sentence_score(two, [one]).score
    assert expected_utilities([one, two, one], metrics["chrf"]) == pytest.approx(
        [(200 + there) / 3, (100 + 2 * back) / 3, (200 + there) / 3]
    )
    bleu = BLEU(effective_order=True).sentence_score(one, [two]).score
    sentence_bleu = metrics["bleu"].for_sentences()
    assert expected_utilities([one, two], sentence_bleu)[0] == pytest.approx((100 + bleu) / 2)


def test_an_error_rate_counts_as_its_negative() -> None:
    # One edit in two words of "a house", one in three of "a small house".
    found = expected_utilities(["a small house", "a house"], metrics["ter"])
    assert found == pytest.approx([-50 / 2, -100 / 3 / 2])


def test_a_candidate_alone_agrees_with_itself() -> None:
    assert expected_utilities(["a house"], metrics["chrf"]) == [100.0]


def test_without_spaces_candidates_agree_by_the_tokeniser_of_their_language() -> None:
    candidates = ["二匹の大きな猫がいる", "二匹の大きな犬がいる", "雨"]
    by_spaces = expected_utilities(candidates, metrics["bleu"].for_sentences())
    assert by_spaces[0] == by_spaces[2]
    chinese = metrics["bleu"].for_language("zh").for_sentences()
    by_characters = expected_utilities(candidates, chinese)
    assert min(by_characters[:2]) > by_characters[2] + 10


def samples(seed: int, number: int = 40) -> list[str]:
    """Texts with some words of a sentence left out or replaced."""
    draw = random.Random(seed)
    words = ["two", "dogs", "run", "over", "the", "green", "field", "near", "a", "house", "."]
    texts = []
    for _ in range(number):
        rate = draw.choice([0.1, 0.3])
        kept = [
            word if draw.random() > rate else draw.choice(["", "cat", word * 2]) for word in words
        ]
        texts.append(" ".join(filter(None, kept)))
    return texts


def test_the_average_of_equal_texts_is_the_text() -> None:
    for name in ("bleu", "chrf", "chrf++"):
        metric = metrics[name].for_sentences()
        [first, other] = metric.counts_against_average(["a small house", "a house"], [1, 0])
        expected = metric.counts(["a small house", "a house"], ["a small house"] * 2, [])
        assert [first, other] == expected


def test_the_average_weighs_each_n_gram_by_its_share() -> None:
    rows = metrics["bleu"].counts_against_average(["a b b", "a c"], [3, 1])
    # Lengths 3 and 2; expected counts: a 1, b 1.5, c 0.25; a-b and b-b 0.75, a-c 0.25; a-b-b 0.75.
    assert rows[0] == [3, 2.75, 1 + 1.5, 1.5, 0.75, 0, 3, 2, 1, 0]
    assert rows[1] == [2, 2.75, 1.25, 0.25, 0, 0, 2, 1, 0, 0]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_pruning_keeps_the_best_and_its_utility(utility: str) -> None:
    metric, same = metrics[utility].for_sentences(), 0
    for seed in range(10):
        candidates = samples(seed)
        every = expected_utilities(candidates, metric)
        pruned = expected_utilities(candidates, metric, 5)
        kept = {text for text, value in zip(candidates, pruned, strict=True) if value > -inf}
        assert len(kept) == 5
        assert all(value in (-inf, expected) for value, expected in zip(pruned, every, strict=True))
        same += candidates[pruned.index(max(pruned))] == candidates[every.index(max(every))]
    assert same >= 9
    assert expected_utilities(candidates, metric, 40) == every


def test_pruning_weighs_a_candidate_by_how_often_it_is_there() -> None:
    others = ["a b c d e", "a b c d f", "a b c d g"]
    pruned = expected_utilities(["x y z", *others, *["x y z"] * 4], metrics["chrf"], 1)
    assert [at for at, value in enumerate(pruned) if value > -inf] == [0, 4, 5, 6, 7]


def test_a_list_has_each_text_once_by_its_utility_and_none_that_pruning_leaves_out() -> None:
    texts = ["a b c d f", "x y z", "a b c d e", "a b c d e", "a b c d g"]
    hypotheses = [Hypothesis([at], -at, -at, finished=True) for at in range(5)]
    metric = metrics["chrf"].for_sentences()
    values = expected_utilities(texts, metric)

    every = by_consensus(hypotheses, texts, metric)
    best = sorted((0, 1, 2, 4), key=lambda at: -values[at])
    assert [(one.tokens, one.score) for one in every] == [([at], values[at]) for at in best]
    assert by_consensus([], [], metric) == []
    assert by_consensus(hypotheses, texts, metric, 2) == every[:2]


def test_pruning_that_cannot_be_is_refused() -> None:
    with pytest.raises(NmtError, match="ter has no average"):
        metrics["ter"].counts_against_average(["a"], [1])
    with pytest.raises(NmtError, match="mbr_pruning: ter has no average; choose bleu or chrf"):
        build(SearchConfig, {"mbr": "ter", "mbr_pruning": 3}, "search")
    with pytest.raises(NmtError, match="mbr_pruning must be at least 1, not 0"):
        build(SearchConfig, {"mbr_pruning": 0}, "search")
    with pytest.raises(NmtError, match="mbr_pruning prunes nothing without mbr; set mbr, such as"):
        build(SearchConfig, {"mbr_pruning": 3}, "search")
    strategy = {"name": "sample", "samples": 9}
    config = build(SearchConfig, {"mbr": "chrf", "mbr_pruning": 3, "strategy": strategy}, "search")
    config.check_count(3)
    with pytest.raises(NmtError, match=r"4 translations of a line: search\.mbr_pruning leaves 3"):
        config.check_count(4)


def test_one_hypothesis_to_choose_from_is_worth_a_warning(
    trained: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    def messages(*flags: str) -> str:
        line = ("--model", trained, "--mbr", "chrf", corpus / "test.en")
        return str(nmt("translate", *line, *flags).err)

    sampled = messages("--strategy", "sample")
    assert (
        "sample finds one hypothesis, which agrees with itself; raise search.strategy." in sampled
    )
    assert "agrees with itself; use --strategy sample or beam" in messages("--strategy", "greedy")
    assert "agrees" not in messages("--strategy", "sample", "--set", "search.strategy.samples=2")

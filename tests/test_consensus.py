"""Minimum Bayes risk over given translations."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.evaluation.consensus import expected_utilities
from nmt.evaluation.metrics import metrics


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

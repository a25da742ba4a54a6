"""Minimum Bayes risk over given translations."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.evaluation.consensus import Utility, expected_utilities


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_what_most_others_resemble_is_best(utility: Utility) -> None:
    candidates = ["an ant is here", "the cat sat on a mat", "the cat sat on the mat", "the cat sat"]
    values = expected_utilities(candidates, utility)
    assert max(values) in (values[1], values[2])
    assert min(values) == values[0]


def test_the_mean_is_over_all_candidates_and_equals_count_as_often_as_they_are_there() -> None:
    one, two = "a small house", "a house"
    chrf = CHRF()
    there = chrf.sentence_score(one, [two]).score
    back = chrf.sentence_score(two, [one]).score
    assert expected_utilities([one, two, one], "chrf") == pytest.approx(
        [(200 + there) / 3, (100 + 2 * back) / 3, (200 + there) / 3]
    )
    bleu = BLEU(effective_order=True).sentence_score(one, [two]).score
    assert expected_utilities([one, two], "bleu")[0] == pytest.approx((100 + bleu) / 2)


def test_a_candidate_alone_agrees_with_itself() -> None:
    assert expected_utilities(["a house"], "chrf") == [100.0]

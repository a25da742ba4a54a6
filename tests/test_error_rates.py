"""Word and phone error rates, on cases that a person can check."""

import pytest

from nmt.evaluation.error_rates import edit_distance
from nmt.evaluation.metrics import metrics

HYPOTHESES = ["k a̠ ɡ a̠ m", "k a̠  ɡ e̞", "", "ə ŋ k"]
REFERENCES = ["k a̠ ɡ a̠ m", "k a̠ː ɡ e̞", "a", "ə k"]


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("", "", 0),
        ("a b c", "", 3),
        ("a b c", "a c", 1),
        ("a b", "b a", 2),
        ("k i t", "s i t s", 2),
    ],
)
def test_the_edit_distance(first: str, second: str, distance: int) -> None:
    assert edit_distance(first.split(), second.split()) == distance
    assert edit_distance(second.split(), first.split()) == distance


def test_a_word_is_wrong_or_right_and_a_phone_counts() -> None:
    words = metrics["wer"].score(HYPOTHESES, REFERENCES)
    assert str(words) == "wer = 75.00 (3/4) nrefs:1|tok:none"
    phones = metrics["per"].score(HYPOTHESES, REFERENCES)
    assert str(phones) == "per = 25.00 (3/12) nrefs:1|tok:none"
    assert not phones.higher_is_better

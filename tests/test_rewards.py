"""Rewards of single translations, on cases that a person can count."""

import dataclasses
import math

import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.evaluation.rewards import Reward, rewards
from nmt.recipe.config import build, dump

CAT = "the cat sat on the mat"


@for_each("name", list(rewards))
def test_a_reward_is_one_for_the_reference_and_nothing_without_a_word_of_it(name: str) -> None:
    reward = rewards[name]
    assert reward(CAT, CAT) == pytest.approx(1.0)
    assert reward("", CAT) == reward("xyz", CAT) == 0.0
    assert 0.0 < reward("the cat", CAT) < reward("the cat sat on", CAT) < 1.0


@for_each("name", list(rewards))
def test_a_bare_name_and_written_values_give_the_registered_entry(name: str) -> None:
    assert build(Reward, name, "reward") == rewards[name]
    assert build(Reward, dump(rewards[name]), "reward") == rewards[name]


@for_each(
    ("hypothesis", "expected"),
    [
        # Of 6 + 5 + 4 + 3 n-grams: 3 + 2 + 1 are there, of 3 + 2 + 1.
        ("the cat sat", 6 / 18),
        # "the" twice, and no more, of 4 + 3 + 2 + 1.
        ("the the the the", 2 / 18),
        # 8 + 7 + 6 + 5 n-grams of the hypothesis, of which all of the reference.
        (f"{CAT} and slept", 18 / 26),
        # 5 words, "the cat", "on the", "the mat", and "on the mat".
        ("the cat on the mat", (5 + 3 + 1) / 18),
    ],
)
def test_gleu_is_the_lesser_of_precision_and_recall(hypothesis: str, expected: float) -> None:
    assert rewards["gleu"](hypothesis, CAT) == pytest.approx(expected)
    assert rewards["gleu"](CAT, hypothesis) == pytest.approx(expected)


def test_the_bleu_of_a_sentence_adds_one_to_the_longer_n_grams() -> None:
    # 3 of 3 words; 2 of 2, 1 of 1 and 0 of 0 n-grams, one more of each.
    brevity = math.exp(1 - 6 / 3)
    assert rewards["bleu"]("the cat sat", CAT) == pytest.approx(brevity)
    # 2 of 4 words are "the"; no longer n-gram of 3, 2 and 1 is there.
    precisions = (2 / 4) * (1 / 4) * (1 / 3) * (1 / 2)
    expected = math.exp(1 - 6 / 4) * precisions**0.25
    assert rewards["bleu"]("the the the the", CAT) == pytest.approx(expected)


def test_words_are_those_of_the_tokeniser() -> None:
    gleu = rewards["gleu"]
    assert gleu("a mat.", "a mat .") == 1.0
    assert dataclasses.replace(gleu, tokenize="none")("a mat.", "a mat .") == 1 / 6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "gleu", "tokenize": "13b"}, "unknown tokenizer '13b'; known: 13a, "),
        ("glue", "unknown reward 'glue'; did you mean 'gleu'"),
    ],
)
def test_what_does_not_exist_is_refused(values: object, message: str) -> None:
    with pytest.raises(NmtError, match=message.replace("?", r"\?")):
        build(Reward, values, "reward")

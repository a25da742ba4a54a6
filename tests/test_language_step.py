import sys

import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.preprocess import steps
from nmt.preprocess.cleaning import steps as language
from nmt.preprocess.cleaning.steps import CleaningStep
from nmt.recipe.config import build

GERMAN = "Ein Mann geht mit seinem Hund über die Straße."
ENGLISH = "A man crosses the street with his dog."


@for_each(
    ("source", "target", "kept"),
    [
        (ENGLISH, GERMAN, True),
        (GERMAN, GERMAN, False),
        (ENGLISH, ENGLISH, False),
        (ENGLISH, "Un hombre cruza la calle con su perro.", False),
        ("A dog", "Un perro", True),  # too short to be certain
        ("", "", True),
        ("12:30", "https://example.org/a?b=1&c=22", True),
    ],
)
def test_a_pair_is_dropped_if_a_side_is_in_another_language(source, target, kept):
    step = steps["language"].for_languages("en", "de_DE")
    assert step.keep([source], [target], frozenset()) == [kept]


def test_a_side_may_be_in_several_languages():
    step = build(CleaningStep, {"name": "language", "target": ["de", "en"]}, "step")
    step = step.for_languages("en", "xx")
    assert step.target == ("de", "en")
    assert step.keep([ENGLISH] * 2, [GERMAN, ENGLISH], frozenset()) == [True, True]


def test_a_higher_probability_keeps_more():
    line = "Guten Morgen, Frau Müller"
    strict, lenient = (
        build(CleaningStep, {"name": "language", "min_probability": share}, "step").for_languages(
            "en", "de"
        )
        for share in (0.5, 0.9)
    )
    assert strict.keep([line], [GERMAN], frozenset()) == [False]
    assert lenient.keep([line], [GERMAN], frozenset()) == [True]


@pytest.mark.parametrize(("pair", "side"), [(("deu", "en"), "source"), (("en", ""), "target")])
def test_a_language_that_is_not_known_is_answered(pair, side):
    with pytest.raises(NmtError, match=f"knows no {side} language '(deu)?'; set the {side} of"):
        steps["language"].for_languages(*pair)


def test_probabilities_are_from_0_to_1():
    with pytest.raises(NmtError, match="min_probability must be more than 0 and at most 1, not 2"):
        build(CleaningStep, {"name": "language", "min_probability": 2}, "step")


def test_the_missing_package_is_named(monkeypatch):
    language._identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(NmtError, match=r"needs py3langid; pip install 'nmt-toolkit\[language\]'"):
        steps["language"].for_languages("en", "de")

"""What samples say of systems is what sacreBLEU says of the same text."""

from __future__ import annotations

import json
import os
import random

import pytest
from for_each import for_each
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from nmt.errors import NmtError
from nmt.evaluation import Score
from nmt.evaluation.comparison import SEED_VARIABLE, Paired, Resampling, Result, compare
from nmt.evaluation.metrics import metrics, split_compounds

THEIRS = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
WORDS = ["das", "Haus", "ist", "grün-blau", ",", "“klein”", "und", "ein", "Hund", "bellt", "."]


def text(seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(60)]


def changed(lines: list[str], seed: int, share: float) -> list[str]:
    """The lines with a share of their words replaced."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]


REFERENCES = text(1)
SECOND = changed(REFERENCES, 9, 0.2)
SYSTEMS = {
    "base": changed(REFERENCES, 2, 0.3),
    "near": changed(REFERENCES, 3, 0.28),
    "better": changed(REFERENCES, 4, 0.1),
}


@pytest.mark.parametrize("paired", ["bs", "ar"])
@for_each(("name", "number"), [(name, number) for name in THEIRS for number in (1, 2)])
def test_paired_tests_are_those_of_sacrebleu(
    name: str, number: int, paired: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    resampling = Resampling(paired=paired, confidence=True, count=200, seed=7)
    streams = [REFERENCES, SECOND][:number]
    references = [*zip(*streams, strict=True)]
    ours = compare(SYSTEMS, references, [metrics[name]], None, resampling)
    assert all(f"nrefs:{number}|" in result.score.signature for result in ours)
    monkeypatch.setenv(SEED_VARIABLE, "7")
    test = PairedTest(list(SYSTEMS.items()), {name: THEIRS[name]()}, streams, paired, 200, 1000)
    [theirs] = [column for key, column in test()[1].items() if key != "System"]
    base = theirs[0].score
    assert [(it.score.value, it.mean, it.interval, it.p_value) for it in ours] == [
        (it.score, it.mean, it.ci, 1.0 if it.p_value and it.score == base else it.p_value)
        for it in theirs
    ]
    assert [it.baseline for it in ours] == [None, "base", "base"]
    assert ours[2].p_value == pytest.approx(1 / 201)


@pytest.mark.parametrize("name", THEIRS)
def test_intervals_are_those_of_sacrebleu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"base": SYSTEMS["base"]}
    resampling = Resampling(confidence=True, count=300, seed=7)
    [ours] = compare(one, REFERENCES, [metrics[name]], None, resampling)
    monkeypatch.setenv(SEED_VARIABLE, "7")
    theirs = THEIRS[name]().corpus_score(SYSTEMS["base"], [REFERENCES], n_bootstrap=300)
    assert (ours.mean, ours.interval) == (theirs._mean, theirs._ci)
    assert ours.score.value == theirs.score
    assert (ours.p_value, ours.baseline, ours.samples) == (None, None, "bs:300|seed:7")


@pytest.mark.parametrize("paired", [None, "bs", "ar"])
@for_each("name", ["bleu", "tokenized_bleu", "paper_bleu", "chrf", "chrf++", "ter"])
def test_samples_of_which_some_score_nothing_have_an_interval(
    name: str, paired: Paired | None
) -> None:
    resampling = Resampling(paired=paired, confidence=True, count=40)
    systems = {"base": ["a b c d", "x"], "same": ["a b c d", "x"]}
    for result in compare(systems, ["a b c d", "b"], [metrics[name]], None, resampling):
        assert isinstance(result.mean, float)
        assert isinstance(result.interval, float)
        json.dumps(result.fields())


def test_the_paper_s_bleu_is_tested_over_the_text_of_its_protocol() -> None:
    moses, normalise = MosesTokenizer("de"), MosesPunctNormalizer().replace_unicode_punct

    def tokenise(line: str) -> str:
        return split_compounds(moses.tokenize(line, return_str=True))

    resampling = Resampling(paired="bs", count=100)
    ours = compare(SYSTEMS, REFERENCES, [metrics["paper_bleu"]], None, resampling)
    plain = BLEU(tokenize="none", smooth_method="none", force=True)
    systems = [(key, [tokenise(normalise(it)) for it in lines]) for key, lines in SYSTEMS.items()]
    test = PairedTest(systems, {"x": plain}, [[tokenise(it) for it in REFERENCES]], "bs", 100)
    theirs = test()[1]["BLEU"]
    assert [(it.score.value, it.p_value) for it in ours] == [
        (it.score, it.p_value) for it in theirs
    ]


@pytest.mark.parametrize("paired", ["bs", "ar"])
def test_a_system_that_is_the_baseline_in_every_sentence_is_not_different(paired: Paired) -> None:
    systems = {"base": SYSTEMS["base"], "copy": SYSTEMS["base"]}
    resampling = Resampling(paired=paired, count=50)
    base, copy = compare(systems, REFERENCES, [metrics["bleu"]], None, resampling)
    assert (base.p_value, copy.p_value) == (None, 1.0)


@pytest.mark.parametrize("paired", ["bs", "ar"])
def test_systems_of_the_same_score_are_not_different(paired: Paired) -> None:
    systems = {"base": ["x", "y"], "other": ["a b", "c"]}
    resampling = Resampling(paired=paired, count=50)
    base, other = compare(systems, ["d", "e"], [metrics["bleu"]], None, resampling)
    assert (base.score.value, other.score.value, other.p_value) == (0.0, 0.0, 1.0)


def test_samples_depend_on_the_seed_which_is_nowhere_left_behind() -> None:
    before = dict(os.environ)
    found = [
        compare(SYSTEMS, REFERENCES, [metrics["bleu"]], None, Resampling(paired="ar", seed=seed))
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1]
    assert found[0][1].p_value != found[2][1].p_value
    assert os.environ == before


def test_a_seed_of_sacrebleu_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED_VARIABLE, "7")
    resampling = Resampling(confidence=True, count=9)
    compare(SYSTEMS, REFERENCES, [metrics["chrf"]], resampling=resampling)
    assert os.environ[SEED_VARIABLE] == "7"


def test_without_samples_there_are_only_scores() -> None:
    results = compare(SYSTEMS, REFERENCES, [metrics["bleu"], metrics["ter"]])
    assert [(it.score.metric, it.system) for it in results] == [
        (metric, system) for metric in ("bleu", "ter") for system in SYSTEMS
    ]
    for each in results:
        score = metrics[each.score.metric].score(SYSTEMS[each.system], REFERENCES)
        assert each == Result(system=each.system, score=score)
        assert str(each) == str(score)
        assert each.fields() == {"system": each.system, **vars(score)}


@pytest.mark.parametrize("resampling", [None, Resampling(paired="bs"), Resampling(paired="ar")])
def test_a_score_that_is_not_a_number_is_refused(
    resampling: Resampling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bleu = metrics["bleu"]
    monkeypatch.setattr(type(bleu), "compute", lambda self, counts: (float("nan"), ""))
    with pytest.raises(NmtError, match=r"base: its score by bleu, .* is not a number"):
        compare(SYSTEMS, REFERENCES, [bleu], None, resampling)


def test_a_mean_and_an_interval_of_zero_are_told() -> None:
    score = metrics["bleu"].score(REFERENCES, REFERENCES)
    fields = Result(system="a", score=score, mean=0.0, interval=0.0).fields()
    assert (fields["mean"], fields["interval"]) == (0.0, 0.0)
    assert "p_value" not in fields


@for_each(
    ("resampling", "written"),
    [
        (Resampling(), ""),
        (Resampling(confidence=True), "bs:1000|seed:12345"),
        (Resampling(paired="bs", confidence=True), "bs:1000|seed:12345"),
        (Resampling(paired="bs", count=9), "bs:9|seed:12345"),
        (Resampling(paired="bs", confidence=True, count=9), "bs:9|seed:12345"),
        (Resampling(paired="ar"), "ar:10000|seed:12345"),
        (Resampling(paired="ar", confidence=True, count=9, seed=1), "ar:9|bs:1000|seed:1"),
    ],
)
def test_samples_have_a_signature(resampling: Resampling, written: str) -> None:
    assert str(resampling) == written


def test_an_interval_is_printed_behind_its_value_and_the_samples_behind_the_signature() -> None:
    score = Score(metric="m", value=12.345, details="(d)", signature="s:1", higher_is_better=True)
    sure = Result(system="x", score=score, mean=12.3, interval=0.456, samples="bs:9|seed:1")
    assert str(sure) == "m = 12.35 (μ = 12.30 ± 0.46) (d) s:1|bs:9|seed:1"

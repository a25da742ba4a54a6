"""Weights of features for a metric: the exact line search, what it finds, and the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from for_each import for_each

from nmt.evaluation.metrics import Metric, metrics
from nmt.evaluation.tuning import TuningSet

WORDS = ["a", "red", "ball", "rolls", "down", "the", "long", "green", "hill"]


def table(sentences: int, seed: int, metric: Metric) -> tuple[Any, ...]:
    """Lists of translations with words left out; a feature that counts these, and two of noise."""
    random = np.random.default_rng(seed)
    reference = " ".join(WORDS)
    sizes = random.integers(1, 7, sentences).tolist()
    texts, features = [], []
    for _ in range(sum(sizes)):
        kept = random.random(len(WORDS)) < random.choice([0.6, 0.95])
        texts.append(" ".join(word for word, is_kept in zip(WORDS, kept, strict=True) if is_kept))
        missing = float((~kept).sum())
        features.append([random.normal(), missing + random.normal() / 9, 1e4 * random.normal()])
    return features, metric.checked_counts(texts, [reference] * len(texts)), sizes, metric


@for_each("name", ["bleu", "chrf", "ter"])
def test_the_best_point_of_a_line_is_no_worse_than_any_that_is_tried(name: str) -> None:
    sign = 1 if metrics[name].higher_is_better else -1
    for seed in range(5):
        tuning_set = TuningSet(*table(30, seed, metrics[name]))
        random = np.random.default_rng(seed)
        weights, direction = random.normal(size=(2, 3)) / [1, 1, 1e4]
        step, value = tuning_set._best_on_line(weights, direction)
        assert sign * tuning_set.value(weights + step * direction) == pytest.approx(value)
        for tried in np.linspace(-20, 20, 401):
            assert sign * tuning_set.value(weights + tried * direction) <= value + 1e-9


def line(features: list[list[float]], best: int) -> tuple[float, float]:
    """The best step along the last feature for one list, of which one translation is right."""
    texts = ["a red ball" if at == best else "a" for at in range(len(features))]
    counts = metrics["chrf"].checked_counts(texts, ["a red ball"] * len(texts))
    tuning_set = TuningSet(features, counts, [len(features)], metrics["chrf"])
    return tuning_set._best_on_line(np.array([1.0, 0.0]), np.array([0.0, 1.0]))


def test_the_best_point_may_lie_before_the_first_crossing_and_behind_the_last() -> None:
    step, value = line([[0, -1], [0, 1]], best=0)
    assert step < 0
    assert value == pytest.approx(100)
    step, value = line([[0, -1], [0, 1]], best=1)
    assert step > 0
    assert value == pytest.approx(100)


def test_of_translations_that_rise_alike_the_highest_is_chosen_before_the_first_crossing() -> None:
    step, value = line([[0, -1], [3, -1], [0, 1]], best=0)
    assert value < 100
    step, value = line([[0, -1], [3, -1], [0, 1]], best=1)
    assert step < 1.5
    assert value == pytest.approx(100)


def test_a_point_that_rounded_weights_miss_is_not_chosen() -> None:
    assert line([[0, -1], [1e-3, 0], [0, 1]], best=1) == pytest.approx((0, 100))
    assert line([[0, -1], [1e-12, 0], [0, 1]], best=1)[1] < 100


def test_the_least_error_rate_of_all_restarts_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TuningSet, "_climb", lambda _, weights, *others: weights)
    counts = metrics["ter"].checked_counts(["a red ball", "a"], ["a red ball"] * 2)
    weights, value = TuningSet([[-1.0], [1.0]], counts, [2], metrics["ter"]).tune()
    assert (weights.tolist(), value) == ([-1.0], 0.0)


def test_the_scale_of_a_feature_is_its_deviation_within_lists_of_any_length() -> None:
    features = [[1.0, 7.0], [3.0, 7.0], [10.0, 9.0]]
    scales = TuningSet(features, [[0.0]] * 3, [2, 1], metrics["bleu"])._scales()
    assert scales == pytest.approx([(2 / 3) ** 0.5, 1.0])


@pytest.mark.parametrize("name", ["bleu", "ter"])
def test_the_feature_that_tells_good_from_bad_gets_the_weight(name: str) -> None:
    features, counts, sizes, metric = table(80, 7, metrics[name])
    tuning_set = TuningSet(features, counts, sizes, metric)
    weights, value = tuning_set.tune(seed=3, restarts=2)
    assert tuning_set.value(weights) == value
    assert np.abs(weights).sum() == pytest.approx(1, abs=1e-5)
    assert weights[1] < 0
    assert abs(weights[1]) > 3 * abs(weights[0])
    assert abs(weights[1]) > 3 * abs(weights[2]) * 1e4
    best = tuning_set.value(np.array([0.0, -1.0, 0.0]))
    assert value >= best if metric.higher_is_better else value <= best
    assert tuning_set.tune(seed=3, restarts=2)[0].tolist() == weights.tolist()


def test_a_feature_that_never_differs_does_no_harm() -> None:
    features, counts, sizes, metric = table(20, 1, metrics["bleu"])
    constant = [[row[1], 5.0] for row in features]
    weights, value = TuningSet(constant, counts, sizes, metric).tune(restarts=1)
    assert weights[0] < 0
    assert value == TuningSet(constant, counts, sizes, metric).value(np.array([-1.0, 0.0]))


def write(directory: Path) -> tuple[str, ...]:
    texts = {
        0: ["eine Katze schläft hier", "ein Hund schläft hier"],
        2: ["zwei rote", "drei Bälle"],
    }
    features = {0: [(1, 3), (2, 1)], 2: [(4, 9), (5, 8)]}
    lines = [
        f"{number} ||| {text} ||| Model= {model} Other= {other} ||| {-at}"
        for number in texts
        for at, (text, (model, other)) in enumerate(
            zip(texts[number], features[number], strict=True)
        )
    ]
    (directory / "list").write_text("".join(f"{line}\n" for line in lines))
    (directory / "x.de").write_text("ein Hund schläft hier\nnichts\ndrei Bälle\n")
    return "tune", str(directory / "list"), "--reference", str(directory / "x.de")


def test_rescoring_by_the_weights_has_the_score_that_was_promised(
    tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    flags = write(tmp_path)
    done = nmt(*flags, "--metric", "chrf")
    assert done.status == 0, done.err
    assert [*yaml.safe_load(done.out)] == ["Model", "Other"]
    assert done.err.startswith(
        f"nmt: warning: {flags[1]}: no translations of 1 of the 3 lines of {flags[3]}; "
        "they count as empty\n"
        f"nmt: warning: {flags[3]}: 3 lines are few: the weights may fit these alone"
    )
    assert done.out == nmt(*flags, "--metric", "chrf").out
    (tmp_path / "weights.yaml").write_text(done.out)
    weights = ("--weights", tmp_path / "weights.yaml")
    chosen = nmt("rescore", tmp_path / "list", *weights, "--best")
    assert chosen.out == "ein Hund schläft hier\n\ndrei Bälle\n"
    (tmp_path / "chosen").write_text(chosen.out)
    score = nmt("score", "-r", tmp_path / "x.de", "-m", "chrf", tmp_path / "chosen").out.split()[2]
    assert f"with these weights: {score}\n" in done.err
    before = nmt(
        "rescore", tmp_path / "list", "--source", tmp_path / "x.de", "--weights", "Model=-1"
    )
    assert before.status == 0
    alone = nmt(*flags, "--features", "Other")
    assert [*yaml.safe_load(alone.out)] == ["Other"]
    assert nmt(*flags, "--features", "Other,Other").out == alone.out


def test_the_language_of_the_references_chooses_the_words_of_bleu(
    tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    list_ = tmp_path / "list"
    list_.write_text("0 ||| 猫が部屋で寝ている ||| F= 1 ||| 1\n0 ||| 犬が走る ||| F= 2 ||| 2\n")
    for name in ("references", "references.ja"):
        (tmp_path / name).write_text("猫が庭で寝ている\n")
    found = [
        [
            nmt("rescore", list_, "--metric", "bleu", "--reference", tmp_path / name, *flags).out,
            nmt("tune", list_, "--reference", tmp_path / name, *flags).err.splitlines()[-1],
        ]
        for name, flags in {
            "references": ("-t", "ja"),
            "references.ja": (),
        }.items()
    ]
    assert found[0] == found[1]
    assert " bleu= 0 " not in found[0][0].splitlines()[0]
    assert not found[0][1].startswith("bleu of the first translations: 0.00")


def test_lists_and_weights_that_do_not_fit_are_refused(
    tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    flags = write(tmp_path)
    refused = nmt(*flags, "--features", "Model,Reverse")
    assert "a translation of line 0: no feature 'Reverse'; there are Model, Other" in refused.err
    refused = nmt(*flags, "--features", "Model,,Other")
    assert "a translation of line 0: no feature ''; there are Model, Other" in refused.err
    refused = nmt("rescore", flags[1], "--weights", "=1")
    assert "a translation of line 0: no feature ''; there are Model, Other" in refused.err
    (tmp_path / "one").write_text("eins\n")
    refused = nmt(*flags[:3], tmp_path / "one")
    assert f"a number above 0, but {tmp_path}/one has 1 lines" in refused.err
    (tmp_path / "far").write_text(f"{10**15} ||| a ||| F= 1 ||| 1\n")  # would fill the memory
    assert "far:1: number 1000000000000000 leaves" in nmt("tune", tmp_path / "far", *flags[2:]).err
    refused = nmt(*flags, "--source", tmp_path / "one")
    assert "differ in their number of lines" in refused.err
    (tmp_path / "empty").write_text("")
    assert "no translations" in nmt("tune", tmp_path / "empty", *flags[2:]).err
    refused = nmt("tune", "-", *flags[2:], stdin=tmp_path / "empty")
    assert refused.err.startswith("nmt: error: stdin: no translations")
    for value in ("nan", "inf", "-1e200"):
        (tmp_path / "odd").write_text(f"0 ||| a ||| F= {value} ||| 1\n")
        refused = nmt("tune", tmp_path / "odd", *flags[2:])
        assert "a feature is not a number from -1e+100 to 1e+100; leave it" in refused.err
    refused = nmt("tune", tmp_path / "odd", flags[2], tmp_path / "empty")
    assert (
        f"{tmp_path}/empty: no references; give a line for each source line of the list"
        in refused.err
    )
    (tmp_path / "bare").write_text("0 ||| a |||  ||| 1\n")
    assert "the translations have no features" in nmt("tune", tmp_path / "bare", *flags[2:]).err
    no_weights = "no weights, lines NAME: NUMBER, as nmt tune writes them"
    no_yaml = "w.yaml: line 1: not valid YAML: "
    for text, message in {
        "[1]": no_weights,
        "Model: x": no_weights,
        "x": no_weights,
        "a: \udcff": no_weights,
        "a: [": no_yaml,
        "[" * 9999: no_yaml,
        f"a: 1{'0' * 400}": no_yaml,
        "Model: 1\nModel: 2": "line 2: not valid YAML: key 'Model' is given twice",
    }.items():
        (tmp_path / "w.yaml").write_text(text, errors="surrogateescape")
        refused = nmt("rescore", tmp_path / "list", "--weights", tmp_path / "w.yaml")
        assert (refused.status, refused.err.count("\n")) == (1, 1)
        assert message in refused.err
    assert nmt("rescore", tmp_path / "list", "--model", tmp_path).status == 2
    assert nmt("rescore", tmp_path / "list", "--weights", "Model=1", "--reverse").status == 2

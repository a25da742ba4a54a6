"""COMET through a package of the same interface; the real one and its models are gigabytes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fake_comet
import pytest
from trained_runs import records

from nmt.errors import NmtError
from nmt.evaluation import Comet, ScoreConfig, comet
from nmt.evaluation.comparison import Resampling, compare
from nmt.evaluation.metrics import metrics
from nmt.recipe.config import build

SOURCES = ["one", "two"]
HYPOTHESES = ["ein Haus", "der Hund"]
REFERENCES = ["ein Haus", "ein Hund"]  # which share all words, and one of three


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_comet.install(monkeypatch)


def test_comet_is_the_mean_over_the_sentences_with_the_model_in_the_signature() -> None:
    score = metrics["comet"].score(HYPOTHESES, REFERENCES, SOURCES)
    assert str(score) == (
        "comet = 66.67 (2 sentences) nrefs:1|model:Unbabel/wmt22-comet-da|scale:100|comet:2.2.7"
    )


def test_comet_reads_the_source() -> None:
    assert metrics["comet"].score(["one"], ["one"], ["one"]).value == 0
    assert metrics["comet"].score(["one"], ["one"], ["eins"]).value == 100


def test_comet_has_scores_of_sentences() -> None:
    metric = metrics["comet"].for_sentences()
    rows = metric.checked_counts(HYPOTHESES, REFERENCES, SOURCES)
    assert [metric.total([row]).value for row in rows] == [100, pytest.approx(100 / 3)]


def test_comet_is_resampled_as_any_metric() -> None:
    systems = {"worse": ["x"] * 50, "same": ["x"] * 50, "better": ["ein"] * 50}
    texts = (["ein Haus"] * 50, [metrics["comet"]], ["a"] * 50)
    worse, same, better = compare(systems, *texts, Resampling(paired="ar", confidence=True))
    assert (worse.p_value, worse.score.value, better.score.value) == (None, 0, 50)
    assert (better.mean, better.interval) == (50, 0)
    assert (same.p_value, better.p_value) == (1.0, pytest.approx(1 / 10_001))


def test_a_checkpoint_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.ckpt"
    path.touch()
    monkeypatch.setattr(sys.modules["comet"], "download_model", None)
    assert comet._load(str(path)).path == str(path)


def test_a_model_that_is_unknown_costs_one_line() -> None:
    with pytest.raises(NmtError) as error:
        Comet(name="comet", model="Unbabel/none").score(HYPOTHESES, REFERENCES, SOURCES)
    assert str(error.value) == (
        "comet: the model 'Unbabel/none' cannot be loaded: \"Model 'Unbabel/none' not supported by "
        'COMET."; give the name of a COMET model on Hugging Face or the path of a checkpoint'
    )


def test_without_its_package_comet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(NmtError) as error:
        metrics["comet"].score(HYPOTHESES, REFERENCES, SOURCES)
    assert str(error.value).startswith("comet needs the package unbabel-comet (")
    assert str(error.value).endswith(
        "); pip install 'nmt-toolkit[comet]', or -e '.[comet]' in a clone"
    )


BY_COMET = ("--set", "train.valid_metrics=[comet]", "--set", "train.best_metric=comet")


def test_training_may_validate_by_comet(train: Any, tmp_path: Path) -> None:
    assert train(tmp_path / "run", *BY_COMET, "--max-updates", 2).status == 0
    [scores] = [it for it in records(tmp_path / "run") if it["record"] == "validation"]
    assert 0 <= scores["comet"] <= 100


def test_training_tries_its_metrics_before_the_first_update(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    done = train(tmp_path / "run", *BY_COMET)
    assert done.status == 1
    assert done.err.splitlines()[-1].startswith("nmt: error: comet needs the package unbabel-comet")
    assert not list((tmp_path / "run").glob("update_*"))


def test_a_batch_holds_at_least_one_sentence() -> None:
    with pytest.raises(NmtError, match="batch_size must be at least 1, not 0"):
        build(ScoreConfig, {"metrics": [{"name": "comet", "batch_size": 0}]}, "score")

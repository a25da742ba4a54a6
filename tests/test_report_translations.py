"""Dataset and translations in a report: equal to the dataset, the log and `nmt score`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from html_checker import Checker

from nmt.data.dataset import Dataset
from nmt.evaluation.metrics import metrics
from nmt.report.document import repeats

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, train: Command) -> list[Path]:
    """Two runs that keep translations."""
    directory = tmp_path_factory.mktemp("runs")
    paths = [directory / "first", directory / "second"]
    for seed, path in enumerate(paths):
        flags = ("--set", "train.valid_metrics=[chrf]", "--seed", seed, "--max-updates", 12)
        assert train(path, *flags).status == 0
    return paths


@pytest.fixture(scope="module")
def document(runs: list[Path], nmt: Command) -> dict[str, Any]:
    """What is reported of them."""
    done = nmt("report", *runs, "--json")
    assert done.status == 0
    read: dict[str, Any] = json.loads(done.out)
    return read


def test_the_dataset_is_described(document: dict[str, Any], dataset: Path) -> None:
    (facts,) = document["datasets"].values()
    opened = Dataset.open(dataset)
    train = opened.split("train")
    assert facts["splits"]["train"]["pairs"] == len(train)
    for side, lengths in enumerate((train.source_lengths, train.target_lengths)):
        described = facts["splits"]["train"]["lengths"][side]
        assert described["mean"] == pytest.approx(lengths.mean())
        assert described["greatest"] == lengths.max()
    ids = {int(token) for at in range(len(train)) for token in train.source(at)}
    assert facts["vocabulary"]["in_use"][0] == len(ids)
    assert facts["vocabulary"]["sizes"][0] == opened.manifest.source_vocabulary


def test_the_translations_have_the_scores_of_the_log(
    document: dict[str, Any], runs: list[Path], corpus: Path
) -> None:
    references = (corpus / "valid.de").read_text().splitlines()
    for run, facts in zip(runs, document["runs"], strict=True):
        lines = map(json.loads, (run / "log.jsonl").open())
        logged = {line["update"]: line["chrf"] for line in lines if line["record"] == "validation"}
        updates = facts["translations"]["updates"]
        assert {"2", "4", "12"} <= {*updates}
        assert all(values["chrf"] == logged[int(at)] for at, values in updates.items())
        text = (run / "validation" / "update_0000012.txt").read_text()
        worst = facts["translations"]["worst"]
        for row in worst:
            hypothesis = text.split("\n")[row["line"] - 1]
            assert row["translations"]["12"] == hypothesis
            assert row["reference"] == references[row["line"] - 1]
            chrf = metrics["chrf"].for_sentences()
            assert row["chrf"] == chrf.score([hypothesis], [row["reference"]]).value
        assert [row["chrf"] for row in worst] == sorted(row["chrf"] for row in worst)


def test_the_page_shows_it(nmt: Command, runs: list[Path]) -> None:
    done = nmt("report", *runs)
    read = Checker(done.out)
    assert read.open == []
    assert {*read.labelled} <= {*read.ids}
    read.assert_outline()
    for words in ("worst of the last validation", "tokens; de: "):
        assert words in done.out
    assert done.out.count("<details>") > 2 * 20


def test_a_dataset_is_found_from_any_directory(
    nmt: Command, run: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nmt.runs import Run

    place, elsewhere = tmp_path / "trained", tmp_path / "elsewhere"
    nested = place / "runs" / "first"
    nested.parent.mkdir(parents=True)
    shutil.copytree(run, nested, symlinks=True)
    shutil.copytree(dataset, place / "data-bin")
    recipe = Run.open(nested).recipe
    recipe["train"]["data"] = "data-bin"
    Run.open(nested).with_recipe(recipe)
    (elsewhere / "data-bin").mkdir(parents=True)  # not the dataset of the run
    for directory in (place, elsewhere, nested):
        monkeypatch.chdir(directory)
        (facts,) = json.loads(nmt("report", nested, "--json").out)["datasets"].values()
        assert facts["fingerprint"] == Run.open(nested).data
        assert Path(facts["path"]).resolve() == place / "data-bin"


def test_without_its_dataset_a_run_is_reported(
    nmt: Command, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nmt.runs import Run

    recipe = Run.open(run).recipe
    recipe["train"]["data"] = str(tmp_path / "gone")
    Run.open(run).with_recipe(recipe)
    done = nmt("report", run, "--json")
    assert done.status == 0
    (facts,) = json.loads(done.out)["datasets"].values()
    assert facts["missing"].startswith(f"The dataset cannot be read: {tmp_path / 'gone'}: not a")
    assert "cannot be read" in nmt("report", run).out


@pytest.mark.parametrize(
    ("text", "reference", "unspaced", "expected"),
    [
        ("a b c d a b c d", "", False, True),
        ("a b c d a b c d", "a b c d a b c d", False, False),
        ("a b c a b c", "", False, False),
        ("天地玄黄天地玄黄", "天地玄黄", True, True),
        ("天地玄黄天地玄黄", "天地玄黄", False, False),
        ("", "", False, False),
    ],
)
def test_repetitions(text: str, reference: str, unspaced: bool, expected: bool) -> None:
    assert repeats(text, reference, unspaced) == expected

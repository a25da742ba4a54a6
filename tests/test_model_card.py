"""The model card that every export has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.data.dataset import Dataset
from nmt.evaluation.metrics import metrics
from nmt.formats import export_formats, export_run
from nmt.runs import Run, find_checkpoint

pytest.importorskip("ctranslate2")

FORMAT = export_formats["ctranslate2"]


@pytest.fixture(scope="module")
def card(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model card of a trained run."""
    output = tmp_path_factory.mktemp("card") / "exported"
    export_run(trained, FORMAT, "fp32", output)
    return (output / "README.md").read_text(encoding="utf-8")


def test_a_card_says_what_a_hub_asks(card: str) -> None:
    header = yaml.safe_load(card.split("---\n")[1])
    assert header == {
        "language": ["en", "de"],
        "license": "unknown",
        "pipeline_tag": "translation",
        "tags": ["translation"],
    }
    assert "\n# Translation from en to de\n" in card
    assert "\n## Licence\n\nTo fill in: " in card
    assert "nmt translate --model . < input.txt > output.txt\n" in card


def test_a_card_has_the_facts_of_the_run(card: str, trained: Path) -> None:
    run, checkpoint = find_checkpoint(trained)
    model, train = run.section("model"), run.section("train")
    assert f"| dataset | fingerprint `{run.data}` |\n" in card
    assert f"| model | `{model['arch']}`, " in card
    assert f", d_model {model['d_model']}, " in card
    assert (
        f"{checkpoint.update:,} updates of {train['tokens_per_update']:,} target tokens, " in card
    )
    assert {*checkpoint.scores} == {"loss", "perplexity"}
    for name, value in checkpoint.scores.items():
        assert f"| {name} | {value:.3f} |  |\n" in card


def test_a_score_stands_next_to_its_signature(trained: Path, tmp_path: Path) -> None:
    run = Run.open(Path(shutil.copytree(trained, tmp_path / "run", symlinks=True)))
    recipe: dict[str, Any] = run.recipe
    recipe["train"]["valid_metrics"] = [{"name": "bleu"}, "chrf", {"name": "of a plugin"}]
    run = run.with_recipe(recipe)
    scores = {"loss": 2.5, "bleu": 30.25, "chrf/en-de": 50.5, "of a plugin": 3.0}
    run.save(99, find_checkpoint(trained)[1].weights(), None, {}, scores, best=True)
    export_run(run.path, FORMAT, "fp32", tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    bleu, chrf = (metrics[name].for_language("de").signature() for name in ("bleu", "chrf"))
    assert "nrefs:1|" in bleu
    assert (
        f"| loss | 2.500 |  |\n| bleu | 30.250 | {bleu} |\n| chrf/en-de | 50.500 | {chrf} |\n"
        "| of a plugin | 3.000 |  |\n"
    ) in card


def test_a_card_has_the_sizes_of_a_dataset_that_is_where_it_was(
    trained: Path, dataset: Path, tmp_path: Path
) -> None:
    manifest = Dataset.open(dataset).manifest
    counts = manifest.splits["train"]
    run = Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
    recipe: dict[str, Any] = Run.open(run).recipe
    assert manifest.fingerprint == Run.open(run).data
    for name, data in (("there", dataset), ("gone", tmp_path / "nothing")):
        recipe["train"]["data"] = str(data)
        Run.open(run).with_recipe(recipe)
        export_run(run, FORMAT, "fp32", tmp_path / name)
    there, gone = ((tmp_path / name / "README.md").read_text() for name in ("there", "gone"))
    assert f": {counts.pairs:,} pairs, {counts.source_tokens:,} source and " in there
    assert " pairs, " not in gone

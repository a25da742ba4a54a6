"""A recipe whose section ``preprocess`` is not that of its dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.preprocess.changes import changed_keys


@pytest.fixture
def section(dataset: Path) -> dict[str, Any]:
    """The section that the dataset was made with."""
    made: dict[str, Any] = json.loads((dataset / "manifest.json").read_text())["recipe"]
    return {**made, "output_dir": str(dataset)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 7},
        {"output_dir": "elsewhere", "vocab_size": 33},
        {"vocab_size": -5},
        {"no_key": 1},
    ],
)
def test_keys_that_say_nothing_else_are_not_changed(
    changes: dict[str, Any], section: dict[str, Any], dataset: Path
) -> None:
    assert changed_keys({**section, **changes}, dataset) == []


def test_keys_that_the_recipe_leaves_out_are_not_changed(
    section: dict[str, Any], dataset: Path
) -> None:
    del section["vocab_size"]
    assert changed_keys(section, dataset) == []


def test_a_dataset_that_cannot_be_read_is_named_by_training(section: dict[str, Any]) -> None:
    section["output_dir"] = "missing"
    assert changed_keys(section, Path("missing")) == []


def test_changed_keys_are_named(section: dict[str, Any], dataset: Path) -> None:
    section |= {"vocab_size": 33, "model_type": "unigram", "train": ["other"], "casing": "inline"}
    assert sorted(changed_keys(section, dataset)) == ["casing", "model_type", "train", "vocab_size"]


def test_training_of_a_new_run_warns_once_of_another_recipe(
    recipe: Path, dataset: Path, nmt: Callable[..., Any], tmp_path: Path
) -> None:
    changed = tmp_path / "changed.yaml"
    changed.write_text(
        recipe.read_text().replace("preprocess:", f"preprocess:\n  output_dir: {dataset}", 1) + "\n"
    )
    options = ("--config", changed, "--data", dataset, "--save-dir", tmp_path / "run")
    options += ("--set", "preprocess.model_type=unigram")
    warning = (
        f"nmt: warning: {dataset}: was made with another preprocess.model_type than the recipe "
        "has; if the recipe is right, run `nmt preprocess` again"
    )
    for updates, times in ((2, 1), (4, 0)):
        done = nmt("train", *options, "--max-updates", updates)
        assert done.status == 0, done.err
        assert done.err.splitlines().count(warning) == times

"""A recipe whose section ``preprocess`` is not that of its dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import NmtError
from nmt.preprocess.config import differences


@pytest.fixture
def section(dataset: Path) -> dict[str, Any]:
    """The section that the dataset was made with."""
    made: dict[str, Any] = json.loads((dataset / "manifest.json").read_text())["recipe"]
    return {**made, "output_dir": str(dataset)}


@pytest.fixture
def newer(dataset: Path, tmp_path: Path) -> Path:
    """A recipe that was written after the dataset."""
    path = tmp_path / "nmt.yaml"
    path.touch()
    after = (dataset / "manifest.json").stat().st_mtime_ns + 1
    os.utime(path, ns=(after, after))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 7},
        {"output_dir": "elsewhere", "vocab_size": 33},
        {"shard": "auto"},
    ],
)
def test_keys_that_say_nothing_else_are_not_changed(
    changes: dict[str, Any], newer: Path, section: dict[str, Any], dataset: Path
) -> None:
    assert differences(newer, {**section, **changes}, dataset) == []


@pytest.mark.parametrize("changes", [{"vocab_size": -5}, {"tags": "middle"}])
def test_a_section_that_is_not_valid_is_refused_before_training(
    changes: dict[str, Any], section: dict[str, Any], dataset: Path
) -> None:
    with pytest.raises(NmtError, match=f"^preprocess.*{next(iter(changes))}"):
        differences(Path("missing.yaml"), {**section, **changes}, dataset)


def test_keys_that_the_recipe_leaves_out_are_not_changed(
    newer: Path, section: dict[str, Any], dataset: Path
) -> None:
    del section["vocab_size"]
    assert differences(newer, section, dataset) == []


def test_a_dataset_that_cannot_be_read_is_named_by_training(
    newer: Path, section: dict[str, Any]
) -> None:
    section["output_dir"] = "missing"
    assert differences(newer, section, Path("missing")) == []


def test_differences_are_named_with_short_values(
    newer: Path, section: dict[str, Any], dataset: Path
) -> None:
    section |= {"vocab_size": 33, "test": None, "documents": {"context": 2}, "train": ["a" * 99]}
    found = differences(newer, section, dataset)
    assert "preprocess.vocab_size was 60, is 33" in found
    assert "preprocess.train" in found
    assert [each.partition(" ")[0] for each in sorted(found)] == [
        "preprocess.documents",
        "preprocess.test",
        "preprocess.train",
        "preprocess.vocab_size",
    ]


def test_a_recipe_older_than_its_dataset_has_not_changed(
    newer: Path, section: dict[str, Any], dataset: Path
) -> None:
    made = (dataset / "manifest.json").stat().st_mtime_ns
    os.utime(newer, ns=(made, made))
    assert differences(newer, {**section, "vocab_size": 33}, dataset) == []


def test_training_of_a_new_run_warns_once_of_a_changed_recipe(
    recipe: Path, dataset: Path, nmt: Callable[..., Any], tmp_path: Path
) -> None:
    changed = tmp_path / "changed.yaml"
    place = f"preprocess:\n  model_type: unigram\n  output_dir: {dataset}"
    changed.write_text(recipe.read_text().replace("preprocess:", place, 1))
    options = ("--config", changed, "--save-dir", tmp_path / "run")  # the recipe's own dataset
    warning = (
        f"nmt: warning: {changed} is newer than {dataset}, and differs: preprocess.model_type was "
        "bpe, is unigram; training uses the dataset as it is, and `nmt preprocess` makes it again"
    )
    for updates, times in ((2, 1), (4, 0)):
        done = nmt("train", *options, "--max-updates", updates)
        assert done.status == 0, done.err
        assert done.err.splitlines().count(warning) == times

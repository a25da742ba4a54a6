"""The examples' recipes load, and their scripts can be read; system tests run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from for_each import for_each

from nmt.cli.recipe import load
from nmt.evaluation import ScoreConfig
from nmt.inference import SearchConfig
from nmt.models import ModelConfig
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build
from nmt.search.base import strategies
from nmt.training.config import TrainConfig

EXAMPLES = Path(__file__).parents[1] / "examples"
SECTIONS = {
    "preprocess": PreprocessConfig,
    "model": ModelConfig,
    "train": TrainConfig,
    "search": SearchConfig,
    "score": ScoreConfig,
}

every_recipe = for_each("recipe", sorted(EXAMPLES.glob("*/*.yaml")))
every_script = for_each("script", sorted(EXAMPLES.glob("*/*.sh")))


@pytest.fixture(autouse=True)
def plugins_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the recipes' plugins register ends with the test."""
    monkeypatch.setattr(strategies, "_entries", dict(strategies._entries))
    yield
    sys.modules.pop("tree_beam", None)


@every_recipe
def test_a_recipe_has_every_section_and_each_can_be_built(recipe: Path) -> None:
    sections = load(recipe, None, {})
    # Fine-tuning may keep the sections of the model that it starts from.
    kept = {"model", "search"} if sections.section("train").get("init_from") else set()
    assert set(SECTIONS) - kept <= set(sections.sections) <= set(SECTIONS)
    for name in sections.sections:
        build(SECTIONS[name], sections.section(name), name)


@every_recipe
def test_what_one_command_writes_the_next_one_reads_below_work(recipe: Path) -> None:
    sections = load(recipe, None, {})
    train = sections.section("train")
    assert train["data"] == sections.section("preprocess")["output_dir"]
    assert train["data"].startswith("work/")
    assert train["save_dir"].startswith("work/")


@every_script
def test_a_script_is_sound_executable_and_strict(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK)
    assert "\nset -euo pipefail\n" in script.read_text(encoding="utf-8")


def test_the_recipes_of_the_paper_have_its_sizes() -> None:
    sizes = {}
    for name in ("base", "big"):
        recipe = load(EXAMPLES / f"wmt14/{name}.yaml", None, {})
        config = build(ModelConfig, recipe.section("model"), "model")  # type: ignore[type-abstract]
        vocabulary = recipe.section("preprocess")["vocab_size"]
        sizes[name] = config.build(vocabulary, vocabulary, True).num_parameters()
    assert sizes == {"base": 63_082_496, "big": 214_245_376}


def test_an_unknown_size_of_multi30k_is_refused() -> None:
    done = subprocess.run(
        ["bash", EXAMPLES / "multi30k/run.sh", "huge"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("run.sh [tiny|tiny_teacher|small]\n")


@for_each("arguments", [[], ["huge"], ["base", "--dryrun"]])
def test_an_unknown_recipe_or_flag_of_wmt14_is_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        ["bash", EXAMPLES / "wmt14/run.sh", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("big_en_fr [--dry-run]\n")


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("exit 127", "+ nmt train"),
        ("echo NVIDIA-SMI has failed; echo; exit 9", "+ nmt train"),
        ("echo 'GPU 0: one'; echo 'GPU 1: two'", "+ torchrun --standalone --nproc-per-node 2"),
    ],
    ids=["no driver", "a failing driver", "two GPUs"],
)
def test_wmt14_counts_the_gpus(tmp_path: Path, program: str, command: str) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = subprocess.run(
        ["bash", EXAMPLES / "wmt14/run.sh", "base", "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GPUS": ""},
    )
    assert f"{command} " in done.stderr


def test_words_are_cut_into_letters_and_jamo(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kor_dev.tsv").write_text("\uac00\uac8c\tk a \u0261 e\n", encoding="utf-8")
    (data / "fre_dev.tsv").write_text("\u00e9t\u00e9\te t e\n", encoding="utf-8")
    prepare = [sys.executable, EXAMPLES / "g2p/prepare.py", data, tmp_path / "corpus"]
    subprocess.run(prepare, check=True)
    texts = {path.name: path.read_text("utf-8") for path in (tmp_path / "corpus").iterdir()}
    assert texts == {
        "dev.kor": "\u1100 \u1161 \u1100 \u1166\n",
        "dev.kor_ipa": "k a \u0261 e\n",
        "dev.fre": "e \u0301 t e \u0301\n",
        "dev.fre_ipa": "e t e\n",
    }

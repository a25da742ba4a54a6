"""The examples' recipes load, and their scripts can be read; system tests run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nmt.cli.recipe import load
from nmt.evaluation import ScoreConfig
from nmt.inference import SearchConfig
from nmt.models import ModelConfig
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build
from nmt.training.config import TrainConfig

EXAMPLES = Path(__file__).parents[1] / "examples"
SECTIONS = {
    "preprocess": PreprocessConfig,
    "model": ModelConfig,
    "train": TrainConfig,
    "search": SearchConfig,
    "score": ScoreConfig,
}

every_recipe = pytest.mark.parametrize(
    "recipe",
    sorted(EXAMPLES.glob("*/*.yaml")),
    ids=lambda path: str(path.relative_to(EXAMPLES)),
)
every_script = pytest.mark.parametrize(
    "script",
    sorted(EXAMPLES.glob("*/*.sh")),
    ids=lambda path: str(path.relative_to(EXAMPLES)),
)


@every_recipe
def test_a_recipe_has_every_section_and_each_can_be_built(recipe: Path) -> None:
    sections = load(recipe, None, {})
    assert set(sections.sections) == set(SECTIONS)
    for name, kind in SECTIONS.items():
        build(kind, sections.section(name), name)


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
    assert done.stderr.endswith("run.sh [tiny|small]\n")


@pytest.mark.parametrize("script", ["run.sh", "speeds.sh"])
def test_a_system_that_has_no_settings_is_refused(script: str) -> None:
    done = subprocess.run(
        ["bash", EXAMPLES / "rivals" / script, "10", "transformer=5", "lstm=5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"{script}: no settings for 'lstm'; known: ")


@pytest.fixture
def rivals_work(tmp_path: Path) -> Path:
    """What run.sh and speeds.sh leave of two systems, one of which is not finished."""
    results = tmp_path / "10-minutes"
    for name, speed in (("gnmt", 900.0), ("bytenet", 500.0)):
        for place, seconds in ((results, 2.0), (tmp_path / "speeds", 1.0)):
            run = place / name / "run"
            (run / "update_0001041").mkdir(parents=True)
            (run / "last").symlink_to("update_0001041")
            lines = [
                {
                    "record": "train",
                    "update": 5 * number,
                    "seconds": seconds * number,
                    "target_tokens_per_second": speed / seconds,
                }
                for number in (1, 2, 3)
            ]
            log = "".join(f"{json.dumps(line)}\n" for line in lines)
            (run / "log.jsonl").write_text(log)
    weights = {"output.weight": torch.zeros(30, 40), "output.bias": torch.zeros(34)}
    save_file(weights, results / "gnmt/run/last/model.safetensors")
    scores = [{"metric": "bleu", "value": 25.256}, {"metric": "chrf", "value": 50.0}]
    lines = [f"{json.dumps(line)}\n" for line in scores]
    (results / "gnmt/scores.jsonl").write_text("".join(lines))
    (results / "gnmt/translate.log").write_text(
        "translated 1000 lines in 16.3 s: 61.2 sentences/s\n"
    )
    return results


def rivals_table(*arguments: object) -> str:
    command = [sys.executable, EXAMPLES / "rivals/table.py", *arguments]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True
    ).stdout


def test_the_table_of_systems_has_measured_speeds_and_says_what_is_missing(
    rivals_work: Path,
) -> None:
    assert rivals_table(rivals_work, "bytenet", "gnmt").splitlines()[2:] == [
        "| gnmt | 25.26 | 50.00 | 1,234 | 1,041 | 900 | 61.2 |",
        "",
        "Not there yet: bytenet.",
    ]


def test_a_run_that_was_too_short_to_report_has_no_speed(rivals_work: Path) -> None:
    shutil.rmtree(rivals_work.parent / "speeds/gnmt")
    (rivals_work / "gnmt/run/log.jsonl").write_text('{"record": "validation", "update": 3}\n')
    assert "| 1,041 | nan | 61.2 |" in rivals_table(rivals_work)


def test_minutes_are_told_as_updates(rivals_work: Path) -> None:
    # 5 updates a second, as speeds.sh measured, though the run had half of it.
    assert rivals_table("--updates", 10, rivals_work.parent / "speeds", "gnmt") == "gnmt=3000\n"

"""The one command for a lent GPU, at tiny size on a CPU, and what it does where stages fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from nmt.models import architectures
from nmt.recipe.config import build
from nmt.training.config import TrainConfig

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu

    yield gpu
    del sys.modules["gpu"]


def run(*arguments: object, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "benchmarks/gpu.sh", *map(str, arguments)],
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, as another machine gets one."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("nmt", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "docs/results").mkdir(parents=True)
    shutil.copy(ROOT / "docs/results/speed.md", root / "docs/results")
    return root


def test_the_command_measures_everything_and_writes_the_tables(
    copied: Path, tmp_path: Path
) -> None:
    chosen = ("tests", "train_base", "decode_base_graphs", "loader", "data")
    chosen += ("curve_bf16", "ctranslate2", "decode_same_weights", "curve_fp8")
    done = run(
        *("--tiny", "--minutes", 30, "--output", tmp_path, "--write-docs"),
        *("--stages", *chosen),
        root=copied,
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "log.txt").read_text()
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [record["stage"].replace(" ", "_") for record in records] == list(chosen)
    assert all(record["error"] is None for record in records)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("log.txt", "results.jsonl", "tables.md"),
    ]
    text = (tmp_path / "tables.md").read_text()
    assert done.stdout == f"{text}\n"
    for row in (
        r"\| tests \| \d+ \| done; 0 passed, [1-9]\d* skipped \|",
        r"\| base \| fp32 \| [\d,]+ \([\d,]+-[\d,]+\) \| [\d,]+( \| [\d.]+%?){2} \| \d+% \|  \|",
        r"\| base( \| [\d.]+){12} \|",
        r"\| decode base graphs \| fp32 \| 4 \| [\d,]+ \| [\d,]+ \| [\d.]+ \|",
        r"\| decode same weights \| fp32 \| 4 \| [\d,]+ \| [\d,]+ \| [\d.]+ \|",
        r"\| ctranslate2 \| float32 \| 4 \| [\d,]+ \| [\d,]+ \| [\d.]+ \|",
        r"\| ctranslate2 \| int8(_float32)? \| 4 \| [\d,]+ \| [\d,]+ \| [\d.]+ \|",
        r"\| random, packs \| [\d,]+ \| [\d,]+ \|",
        r"\| 2 \| [\d.]+ \| [\d,]+ \| [\d.]+ \| [\d,]+ \|",
    ):
        assert re.search(f"^{row}$", text, re.M), row
    document = (copied / "docs/results/speed.md").read_text()
    assert f"<!-- gpu: begin -->\n\n{text}\n<!-- gpu: end -->" in document
    before = (ROOT / "docs/results/speed.md").read_text()
    assert document.split("<!-- gpu: begin -->")[0] == before.split("<!-- gpu: begin -->")[0]
    assert document.split("<!-- gpu: end -->")[1] == before.split("<!-- gpu: end -->")[1]


def test_a_failure_and_a_late_stage_cost_no_finished_figure(
    gpu: ModuleType, tmp_path: Path
) -> None:
    speak = "print('{\"sentences\": 1}', flush=True)"

    def stage(name: str, code: str) -> object:
        return gpu.Stage(name, 1.0, [[sys.executable, "-c", code]], lambda _: gpu.objects(_))

    late = f"{speak}; import time; time.sleep(60)"
    stages = [
        stage("fails", f"{speak}; import sys; sys.exit(3)"),
        stage("late", late),
        stage("last", speak),
    ]
    deadline = gpu.time.monotonic() + 6
    results = (tmp_path / "results.jsonl", tmp_path / "log.txt")
    for path in results:
        path.touch()
    assert gpu.measure(stages, tmp_path, deadline, False) is False
    records = {
        record["stage"]: record for record in map(json.loads, results[0].read_text().splitlines())
    }
    assert [record["error"] and record["error"][:12] for record in records.values()] == [
        *("exit status ", "stopped afte", None),
    ]
    assert all(record["results"] == [{"sentences": 1}] for record in records.values())
    assert "| fails | " in (tmp_path / "tables.md").read_text()


def test_without_time_a_stage_is_not_begun(gpu: ModuleType, tmp_path: Path) -> None:
    never = gpu.Stage("never", 1.0, [["/nonexistent"]])
    assert gpu.measure([never], tmp_path, gpu.time.monotonic() - 1, False) is False
    [record] = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert record["error"] == "no time was left"


def test_missing_modules_are_named_in_one_line(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "MODULES", ("torch", "absent_one", "absent_two"))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path / "output")])
    with pytest.raises(SystemExit) as stop:
        gpu.main()
    message = "gpu.sh: missing Python modules: absent_one, absent_two; give PYTHON or PYTHONPATH"
    assert stop.value.code == message
    assert not (tmp_path / "output").exists()


def test_json_is_found_among_other_text(gpu: ModuleType) -> None:
    assert gpu.objects('a {b} {"c": {"d": 1}}\n{"e": 2}{') == [{"c": {"d": 1}}, {"e": 2}]


def test_the_stages_for_a_gpu_name_what_there_is(gpu: ModuleType, tmp_path: Path) -> None:
    stages = gpu.stages(gpu.Sizes(), tmp_path, None)
    assert len({stage.name for stage in stages}) == len(stages)
    words = [word for stage in stages for command in stage.commands for word in command]
    settings = dict(re.findall(r"--set=train\.(\w+)=(\S+)", "\n".join(words)))
    values = {key: yaml.safe_load(value) for key, value in settings.items()}
    assert build(TrainConfig, values, "train").compile
    scripts = {word for word in words if word.endswith(".py")}
    assert all((ROOT / script).exists() for script in scripts)
    archs = re.findall(r"model\.arch=(\w+)", "\n".join(words))
    assert {"transformer_base", "transformer_big"} == set(archs)
    assert set(archs) <= set(architectures)


def test_training_is_compared_with_itself_bucketed_padded_and_compiled(tmp_path: Path) -> None:
    """At tiny size; the plain loop takes its turns, too."""
    sizes = ("d_model=16", "d_ff=32", "heads=2", "encoder_layers=1", "decoder_layers=1")
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/training.py", "--bucketed", "--padded", "--compiled"),
            "--profile",
            *("--rounds=1", "--updates=1", "--warm-up=1", "--pairs=30", "--vocabulary=40"),
            *("--set=train.tokens_per_update=100", "--set=train.precision=fp32", "--threads=1"),
            *("--set=model.arch=transformer_tiny", *(f"--set=model.{size}" for size in sizes)),
        ],
        env={**os.environ, "TORCH_COMPILE_DISABLE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    sides = {"engine", "plain", "bucketed", "padded", "compiled"}
    assert measured["target_tokens_per_second"].keys() == sides
    assert all(speed > 0 for speed in measured["target_tokens_per_second"].values())
    assert measured["engine_share_of_matrix_ceiling"] > 0
    assert measured["profile"]["milliseconds_of_an_update"] > 0
    assert any("mm" in name for name, _ in measured["profile"]["kernels"])

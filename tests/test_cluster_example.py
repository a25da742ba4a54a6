"""The job files of examples/cluster, with programs that stand in for those of Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from trained_runs import assert_same_run, last_update

import nmt as package

pytestmark = pytest.mark.full

CLUSTER = Path(__file__).parents[1] / "examples/cluster"
PROGRAMS = {
    "srun": 'echo $$ > step; exec "$@"',
    "scancel": '[[ $* == "--signal TERM 7" ]] && kill -TERM "$(< step)"',
    "scontrol": 'if [[ $1 == requeue ]]; then echo "$2" >> requeued; else cat job; fi',
    "torchrun": f'while [[ $1 != -m ]]; do shift; done; exec {sys.executable} "$@"',
}
OPTIONS = ("--max-updates", "300", "--save-every", "50", "--set", "train.log_every=5")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the job files, their scripts, and programs like those of Slurm."""
    for file in [*CLUSTER.glob("*.sh"), *CLUSTER.glob("slurm/*")]:
        shutil.copy(file, tmp_path)
    (tmp_path / "bin").mkdir()
    for name, script in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/usr/bin/env bash\n{script}\n")
        program.chmod(0o755)
    (tmp_path / "job").write_text("PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=None\n")
    return tmp_path


@contextmanager
def job(
    place: Path, programs: Path, *command: object, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A job in the directory, and in the context; its output is one stream."""
    path = f"{place / 'bin'}:{programs}:{os.environ['PATH']}"
    root = str(Path(package.__file__).parents[1])
    process = subprocess.Popen(
        ["bash", *map(str, command)],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": root, **environment},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def run_job(place: Path, programs: Path) -> Callable[..., tuple[int, str]]:
    """Runs a job to its end: its status and its output."""

    def run(*command: object, **environment: str) -> tuple[int, str]:
        with job(place, programs, *command, **environment) as process:
            out, _ = process.communicate(timeout=120)
        return process.returncode, out

    return run


def _reach_the_limit(process: subprocess.Popen[str], place: Path) -> None:
    process.send_signal(signal.SIGUSR1)


def _preempt(process: subprocess.Popen[str], place: Path) -> None:
    """As Slurm within a partition's GraceTime: only the step is told."""
    (place / "job").write_text("PreemptTime=2026-01-01T00:00:00\n")
    os.kill(int((place / "step").read_text()), signal.SIGTERM)


@pytest.mark.parametrize("interrupt", [_reach_the_limit, _preempt])
def test_a_requeued_training_ends_as_if_nothing_had_been(
    interrupt: Callable[[subprocess.Popen[str], Path], None],
    place: Path,
    programs: Path,
    run_job: Callable[..., tuple[int, str]],
    train: Any,
    recipe: Path,
    dataset: Path,
) -> None:
    whole, run = place / "whole", place / "run"
    assert train(whole, *OPTIONS).status == 0
    data = ("--config", recipe, "--data", dataset)
    command = ("train.sbatch", *data, "--save-dir", run, *OPTIONS)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}
    with job(place, programs, *command, **slurm) as process:
        while last_update(run) < 10:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        interrupt(process, place)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, out
    assert (place / "requeued").read_text() == "7\n"
    assert last_update(run) < 300
    status, out = run_job(*command, **slurm, SLURM_RESTART_COUNT="1")
    assert status == 0, out
    assert_same_run(run, whole)
    assert (place / "requeued").read_text() == "7\n"


def test_a_training_that_fails_is_not_requeued(
    place: Path, run_job: Callable[..., tuple[int, str]]
) -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}
    status, out = run_job("train.sbatch", "--data", "nowhere", **slurm)
    assert status != 0
    assert "nowhere" in out
    assert not (place / "requeued").exists()


def test_parts_of_a_translation_are_merged_when_each_is_whole(
    place: Path, run_job: Callable[..., tuple[int, str]], nmt: Any, trained: Path, corpus: Path
) -> None:
    text = (corpus / "train.en").read_text().removesuffix("\n")  # a last line without its end
    (place / "input").write_text(text)
    whole = nmt("translate", "--model", trained, "--input", place / "input").out
    merge = ("merge.sh", 3, "input", "parts", "output")

    def translate(part: int) -> str:
        slurm = {"SLURM_ARRAY_TASK_ID": str(part), "SLURM_ARRAY_TASK_COUNT": "3"}
        status, out = run_job("translate.sbatch", "input", "parts", "--model", trained, **slurm)
        assert status == 0, out
        return out

    translate(1)
    translate(3)
    assert run_job(*merge) == (1, "parts/2-of-3 is missing; run task 2 again\n")
    translate(2)
    part = place / "parts/2-of-3"
    lines = part.read_text()
    part.write_text(lines + "one more\n")
    status, out = run_job(*merge)
    assert status == 1
    assert out.startswith("parts/2-of-3: ")
    assert not list(place.glob("output*"))
    part.write_text(lines)
    assert translate(2) == "parts/2-of-3: there already\n"
    assert run_job(*merge) == (0, "")
    assert (place / "output").read_text() == whole


@pytest.mark.parametrize("name", ["preprocess", "translate"])
def test_a_job_of_kubernetes_makes_each_part_once(name: str) -> None:
    spec = yaml.safe_load((CLUSTER / f"kubernetes/{name}.yaml").read_text())["spec"]
    assert spec["completionMode"] == "Indexed"
    (container,) = spec["template"]["spec"]["containers"]
    script = container["args"][0]
    assert f"$((JOB_COMPLETION_INDEX + 1))/{spec['completions']}" in script
    assert subprocess.run(["bash", "-nc", script], check=False).returncode == 0


@pytest.mark.parametrize("path", sorted(CLUSTER.glob("slurm/*")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_a_job_file(path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    scripts = [path, *CLUSTER.glob("*.sh")]
    found = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout

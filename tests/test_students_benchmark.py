"""The benchmark of students, at tiny size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]

pytest.importorskip("ctranslate2")


def run(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/students.py", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_random_students_are_measured_at_a_fixed_length(
    trained: Path, dataset: Path, corpus: Path
) -> None:
    found = run(
        *("--random", "--like", trained, "--data", dataset, "--source", corpus / "test.en"),
        *("--student", "transformer_tiny", "--teacher", "transformer_tiny"),
        *("--length", 5, "--rounds", 1, "--one-by-one", 3),
    )
    names = ["ctranslate2 teacher, beam 4", "ctranslate2 teacher, greedy", "nmt student, greedy"]
    assert list(found) == ["threads", *names]
    base = found["ctranslate2 teacher, beam 4"]
    assert base["all at once"]["speedup"] == base["one at a time"]["speedup_cpu"] == 1.0
    for name in list(found)[1:]:
        together, alone = found[name]["all at once"], found[name]["one at a time"]
        assert together["sentences_per_second"] > 0
        seconds = 10 / together["sentences_per_second"]
        assert together["target_tokens_per_second"] == pytest.approx(10 * 5 / seconds, rel=0.01)
        assert 0 < alone["milliseconds_p50"] <= alone["milliseconds_p95"]
        assert found[name]["disk_mb"] > 0.1
        assert "bleu" not in found[name]


def test_trained_students_are_scored(trained: Path, dataset: Path, corpus: Path) -> None:
    found = run(
        *("--student", trained, "--teacher", trained, "--source", corpus / "test.en"),
        *("--reference", corpus / "test.de", "--rounds", 1, "--one-by-one", 1, "--threads", 2),
    )
    assert found["threads"] == 2
    assert {"bleu", "chrf"} <= found["nmt student, greedy"].keys()


SIDE = """
import time
from translation import Side, Task

class Slow:
    def side(self):
        return {1: lambda lines: time.sleep(600)}

if __name__ == "__main__":
    side = Side("side", Slow())
    side.pipe.send(Task(["a line"], 1, False))
    print("translating", flush=True)
    side.pipe.recv()
"""


def test_a_side_ends_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SIDE)
    started = subprocess.Popen(
        [sys.executable, tmp_path / "slow.py"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"translating\n"
    started.kill()
    started.communicate(timeout=60)  # until the side has closed stdout, too

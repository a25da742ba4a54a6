"""The benchmark of the server, at tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]


def test_a_server_under_load_answers_what_the_command_writes(trained: Path, corpus: Path) -> None:
    sizes = ("--clients", 4, "--seconds", 1, "--workers", 2, "--repeats", 3)
    model = ("--model", trained, "--source", corpus / "test.en")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/serving.py", *model, *map(str, sizes)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["requests"] == sum(measured["statuses"].values()) > 0
    assert measured["statuses"] == {"200": measured["requests"]}
    assert measured["wrong"] == 0
    assert min(measured["megabytes"]) > 0
    assert min(measured["one_sentence_ms"].values()) > 0

"""The comparison with other toolkits, at tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]


def compare(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/interchange.py", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_is_compared_with_its_export_in_transformers(trained: Path, corpus: Path) -> None:
    pytest.importorskip("transformers")
    found = compare("huggingface", "--run", trained, "--source", corpus / "test.en", "--show", 2)
    assert found["lines"] == len((corpus / "test.en").read_text().splitlines())
    assert found["equal_translations"] == 1.0
    assert found["different"] == []
    assert found["largest_difference_per_token"] < 1e-3
    assert found["import"]["seconds"] > 0
    assert found["nmt"]["lines_per_second"] > 0 < found["huggingface"]["lines_per_second"]


@pytest.mark.full
def test_a_run_is_compared_with_its_export_in_onnxruntime(trained: Path, corpus: Path) -> None:
    found = compare("onnx", "--run", trained, "--source", corpus / "test.en", "--beam", 1)
    assert found["equal_translations"] == 1.0
    assert found["largest_difference_per_token"] < 1e-5
    assert found["nmt"]["lines_per_second"] > 0 < found["onnx"]["lines_per_second"]

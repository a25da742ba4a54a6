"""Attention on packs by our own kernels; tests/test_gpu.py runs them on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_interpreted_kernels_are_attention_within_each_sentence() -> None:
    program = Path(__file__).with_name("interpreted_kernels.py")
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    cases = [line.split() for line in done.stdout.splitlines()]
    assert len(cases) == 10
    for kind, dtype, width, *errors in cases:
        most = 1e-6 if dtype == "torch.float32" else 1e-3
        assert max(map(float, errors)) < most, (kind, dtype, width)

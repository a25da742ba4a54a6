"""Our own kernels, of attention on packs and of the loss; tests/test_gpu.py runs them on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.runtime import own_kernels

pytestmark = pytest.mark.full

with_triton = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="Triton is not installed"
)


def interpreted(program: str) -> list[list[str]]:
    """The words of each line that a program prints, with Triton's interpreter."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(program)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@with_triton
def test_interpreted_kernels_are_attention_within_each_sentence() -> None:
    cases = interpreted("interpreted_attention.py")
    assert len(cases) == 10
    for kind, dtype, width, *errors in cases:
        most = 1e-6 if dtype == "torch.float32" else 1e-3
        assert max(map(float, errors)) < most, (kind, dtype, width)


@with_triton
def test_the_interpreted_kernel_of_the_loss_computes_what_operators_of_torch_do() -> None:
    cases = interpreted("interpreted_loss.py")
    assert len(cases) == 4
    for dtype, *errors in cases:
        assert max(map(float, errors)) < (1e-6 if dtype == "torch.float32" else 1e-3)


@with_triton
def test_the_interpreted_kernels_between_products_are_what_float64_computes() -> None:
    cases = interpreted("interpreted_sublayers.py")
    assert [name for name, *_ in cases] == [
        *["model", *(["add_norm"] * 3 + ["linear_relu"]) * 2, "fp8", "fp8"],
    ]
    for name, dtype, *errors in cases:
        most = 1e-5 if dtype == "torch.float32" else 0.0 if name == "fp8" else 2e-3
        if name == "add_norm":
            # Of 40 rows, the share of elements that dropout keeps is known to some per cent.
            assert float(errors.pop()) < 0.02
        assert max(map(float, errors)) <= most, (name, dtype)


def test_without_triton_one_warning_tells_why_kernels_are_slower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_kernels, "_works", None)
    monkeypatch.setitem(sys.modules, "nmt.runtime.trial_kernel", None)
    assert not own_kernels.has_own_kernels()
    assert not own_kernels.has_own_kernels()
    [line] = capsys.readouterr().err.splitlines()
    assert "attention and loss use slower kernels" in line

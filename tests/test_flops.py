import importlib.util
import sys
from pathlib import Path

import pytest

from nmt.models import architectures

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("flops", ROOT / "benchmarks/flops.py")
flops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(flops)


def test_a_transformer_costs_six_operations_for_each_weight_and_token() -> None:
    config = architectures["transformer_base"]
    cost = flops.flops_per_target_token(config, 37_000, True, 28, 28)
    # Embeddings are tied to the output layer; the scores of attention are the little more.
    assert cost == pytest.approx(6 * 63_082_496, rel=0.01)


def test_the_cost_of_an_lstm_is_counted() -> None:
    config = architectures["gnmt"]
    cost = flops.flops_per_target_token(config, 1000, True, 28, 28)
    weights = 280_925_440 - 31_000 * (3 * 1024 + 1) - 2 * 1000 * 1024  # without embeddings
    assert cost == pytest.approx(6 * weights, rel=0.02)


def test_the_cost_of_two_passes_counts_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [str(ROOT / f"examples/wmt14/{name}.yaml") for name in ("large_batch", "r_drop")]
    monkeypatch.setattr(sys, "argv", ["flops.py", *recipes])
    flops.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2].strip() for row in rows] == ["1.29", "2.58"]


@pytest.mark.parametrize("arch", ["transformer_base", "transformer_big"])
def test_the_operations_of_all_kernels_are_those_that_torch_counts(arch: str) -> None:
    config = architectures[arch]
    counted = flops.kernels_of_update(config, 37_000, 2800, 2800, 28)
    # torch counts no second pass over the scores of attention in the backward pass.
    expected = 2800 * flops.flops_per_target_token(config, 37_000, True, 28, 28)
    assert sum(it.flop for it in counted) == pytest.approx(expected, rel=0.01)
    for it in counted:
        least = max(it.flop / flops.FLOP_PER_SECOND, it.bytes / flops.BYTES_PER_SECOND)
        assert it.floor > 0.999 * least
        assert it.fused is None or it.fused < it.floor


def test_a_table_of_kernels_is_printed_for_each_architecture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = ["--kernels", "transformer_base", "transformer_big"]
    monkeypatch.setattr(sys, "argv", ["flops.py", *kernels, "--tokens", "25000"])
    flops.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "25,000 tokens" in line] == [
        f"| {arch}, 25,000 tokens | TFLOP | GB | floor, ms | with own kernels, ms |"
        for arch in kernels[1:]
    ]
    sums = [line.split(" | ")[1] for line in lines if line.startswith("| all ")]
    assert [float(it) for it in sums] == [9.54, 32.29]

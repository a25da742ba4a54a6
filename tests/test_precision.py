"""The number format of matrix products."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.inference.fast.kernels import PackedLinear, choose_attention, convert
from nmt.models import Model, architectures
from nmt.models.transformer.model import Transformer
from nmt.runtime import precision as precisions
from nmt.runtime.precision import InferencePrecision, autocast, check_precision, pick_precision

CPU = torch.device("cpu")


def test_the_steps_of_a_search_on_a_gpu_use_memory_efficient_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: dict[str, bool] = {}
    for name in ("enable_cudnn_sdp", "enable_flash_sdp"):
        monkeypatch.setattr(torch.backends.cuda, name, partial(chosen.__setitem__, name))
    choose_attention("cpu")
    assert chosen == {}
    choose_attention("cuda")
    assert chosen == {"enable_cudnn_sdp": False, "enable_flash_sdp": False}


def test_a_precision_that_is_given_is_taken() -> None:
    assert pick_precision("fp32", CPU) == "fp32"
    assert pick_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("probe", "expected"),
    [(None, "fp32"), ("_is_avx512_bf16_supported", "bf16"), ("_is_amx_tile_supported", "bf16")],
)
def test_auto_is_bf16_only_where_the_processor_multiplies_it_fast(
    monkeypatch: pytest.MonkeyPatch, probe: str | None, expected: str
) -> None:
    processor(monkeypatch, instructions=probe)
    assert pick_precision("auto", CPU) == expected


def processor(
    monkeypatch: pytest.MonkeyPatch,
    instructions: str | None,
    onednn: bool = True,
    intel: bool = False,
) -> None:
    """Stand in for a processor with these instructions, and oneDNN's kernels for them or none."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == instructions, raising=False)
    operators = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: onednn)
    monkeypatch.setattr(torch.ops, "mkldnn", operators)
    monkeypatch.setattr(precisions, "_is_intel", lambda: intel)


@pytest.mark.parametrize(
    ("probe", "expected"),
    [("_is_avx512_bf16_supported", "fp32"), ("_is_amx_tile_supported", "bf16")],
)
def test_auto_is_bf16_on_processors_of_intel_only_with_amx(
    monkeypatch: pytest.MonkeyPatch, probe: str, expected: str
) -> None:
    processor(monkeypatch, probe, intel=True)
    assert pick_precision("auto", CPU) == expected
    assert bool(check_precision("bf16", "cpu")) == (expected == "fp32")


def test_intel_is_known_by_its_name_on_linux_and_on_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    is_intel = precisions._is_intel.__wrapped__
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(precisions, "Path", lambda path: file)
    for name in ("GenuineIntel", "AuthenticAMD"):
        file.write_text(f"processor\t: 0\nvendor_id\t: {name}\n")
        assert is_intel() == (name == "GenuineIntel")
    file.unlink()
    for name in ("Intel64 Family 6 Model 207, GenuineIntel", "AMD64 Family 25, AuthenticAMD", ""):
        monkeypatch.setattr(precisions.platform, "processor", lambda name=name: name)
        assert is_intel() == ("GenuineIntel" in name)


def test_auto_is_fp32_where_onednn_may_not_use_the_instructions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor(monkeypatch, "_is_avx512_bf16_supported", onednn=False)
    assert pick_precision("auto", CPU) == "fp32"


def test_a_precision_that_the_processor_lacks_is_said_to_be_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor(monkeypatch, None)
    assert check_precision("bf16", "cpu") == (
        "bf16 is slower than fp32 on this processor; use precision auto or fp32"
    )
    for precision in ("auto", "fp32"):
        assert check_precision(precision, "cpu") is None  # type: ignore[arg-type]
    processor(monkeypatch, "_is_amx_tile_supported")
    assert check_precision("bf16", "cpu") is None


WITHOUT_KERNELS = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
}
"""Environment in which oneDNN and torch compute as on a processor of 2013."""


def test_an_lstm_trains_and_translates_in_bf16_where_onednn_has_no_kernel_for_it() -> None:
    program = """
import torch
from tiny_models import VOCABULARY, tiny
from nmt.runtime.precision import autocast, check_precision, pick_precision
from nmt.inference.fast.kernels import convert
cpu = torch.device("cpu")
assert pick_precision("auto", cpu) == "fp32"
assert check_precision("bf16", "cpu")
model = tiny("gnmt_small").build(VOCABULARY, VOCABULARY, True).eval()
source, target = torch.tensor([[7, 8, 9, 3]]), torch.tensor([[2, 11, 12]])
expected = model(source, target).detach()
for _ in range(2):
    with autocast("bf16", cpu):
        given = model(source, target).float()
    assert 0 < (given - expected).abs().max() < 0.05 * expected.std()
    if given.requires_grad:
        given.sum().backward()
    convert(model, "bf16", cpu)
assert torch.backends.mkldnn.enabled
"""
    environment = {**os.environ, **WITHOUT_KERNELS, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_auto_is_fp32_where_torch_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert pick_precision("auto", CPU) == "fp32"


def test_products_are_computed_in_the_precision_and_weights_stay_float32() -> None:
    layer = torch.nn.Linear(4, 4)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(precision, CPU):  # type: ignore[arg-type]
            assert layer(torch.ones(1, 4)).dtype == dtype
        assert layer.weight.dtype == torch.float32


def tiny_model() -> Model:
    torch.manual_seed(1)
    config = dataclasses.replace(architectures["transformer_tiny"], encoder_layers=1)
    return config.build(40, 40, True).eval()


SOURCE = torch.tensor([[7, 8, 9, EOS], [10, EOS, PAD, PAD]])
TARGET = torch.tensor([[BOS, 11, 12], [BOS, 13, 14]])


@pytest.fixture
def without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


@pytest.mark.usefixtures("without_packing")
@torch.no_grad()
def test_weights_kept_in_bf16_give_what_autocast_gives() -> None:
    model = tiny_model()
    with autocast("bf16", CPU):
        expected = model(SOURCE, TARGET)
        convert(model, "bf16", CPU)
        assert torch.equal(model(SOURCE, TARGET), expected)
    assert model.output.weight.dtype == torch.bfloat16
    assert model.target_embedding.weight.dtype == torch.float32


@torch.no_grad()
def test_recurrent_layers_keep_their_weights_in_bf16_as_autocast_would_make_them() -> None:
    torch.manual_seed(1)
    model = tiny("gnmt_small").build(VOCABULARY, VOCABULARY, True).eval()
    with autocast("bf16", CPU):
        expected = model(SOURCE, TARGET).float()
        convert(model, "bf16", CPU)
        given = model(SOURCE, TARGET).float()
    torch.testing.assert_close(given, expected, rtol=0.0, atol=2e-2 * expected.std().item())
    recurrent = [module for module in model.modules() if isinstance(module, torch.nn.RNNBase)]
    assert recurrent
    assert all(weight.dtype == torch.bfloat16 for it in recurrent for weight in it.parameters())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2e-2)])
@torch.no_grad()
def test_packed_weights_give_the_same_products(
    precision: InferencePrecision, tolerance: float
) -> None:
    if precision == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no products in bf16 for this processor")
    model = tiny_model()
    with autocast(precision, CPU):
        expected = model(SOURCE, TARGET)
        convert(model, precision, CPU)
        assert isinstance(model.output, PackedLinear)
        given = model(SOURCE, TARGET)
    assert given.dtype == expected.dtype
    assert (given - expected).abs().max() < tolerance * expected.float().std()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("inputs", [96, 512, 1024])
@torch.no_grad()
def test_what_a_row_gives_with_packed_weights_does_not_depend_on_the_others(inputs: int) -> None:
    torch.manual_seed(1)
    linear, rows = torch.nn.Linear(inputs, 80), torch.randn(70, inputs)
    layer = PackedLinear(linear.weight, linear.bias)
    together = layer(rows)
    for count in (1, 4, 33):
        assert torch.equal(layer(rows[:count]), together[:count])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@torch.no_grad()
def test_packed_weights_are_multiplied_by_few_numbers_of_rows() -> None:
    layer = PackedLinear(torch.randn(5, 8), torch.randn(5))
    multiply, multiplied = layer._multiply, set()

    def record(x: torch.Tensor, *others: Any) -> torch.Tensor:
        multiplied.add(len(x))
        return multiply(x, *others)

    layer._multiply = record
    rows = torch.randn(512, 8)
    together = layer(rows)
    for count in range(1, 513):
        assert torch.equal(layer(rows[:count]), together[:count])
        assert min(size for size in multiplied if size >= count) <= 1.125 * count
    assert len(multiplied) == 16 + 5 * 8  # to 16 all, then eight to each power of two
    assert torch.equal(layer(rows[:35].view(5, 7, 8)), together[:35].view(5, 7, 5))
    assert layer(rows[:0].view(0, 7, 8)).shape == (0, 7, 5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@torch.no_grad()
def test_layers_with_normalised_weights_are_converted_as_others(
    precision: InferencePrecision,
) -> None:
    torch.manual_seed(1)
    model = tiny("conv_s2s").build(VOCABULARY, VOCABULARY, True).eval()
    expected = model(SOURCE, TARGET)
    convert(model, precision, CPU)
    assert not any(hasattr(module, "parametrizations") for module in model.modules())
    with autocast(precision, CPU):
        error = (model(SOURCE, TARGET).float() - expected).square().mean().sqrt()
    if precision == "fp32":
        assert error < 1e-5 * expected.std()
    else:
        assert 0 < error < 0.1 * expected.std()


@torch.no_grad()
def test_a_model_that_is_converted_is_the_same_function_of_the_same_kind() -> None:
    model = tiny_model()
    expected, names = model(SOURCE, TARGET), [name for name, _ in model.named_modules()]
    convert(model, "fp32", CPU)
    assert isinstance(model, Transformer)
    assert type(model).__call__ is Transformer.forward
    assert [name for name, _ in model.named_modules()] == names
    assert (model(SOURCE, TARGET) - expected).abs().max() < 1e-5 * expected.std()


@pytest.mark.usefixtures("without_packing")
def test_fp32_without_packing_leaves_a_model_as_it_is() -> None:
    model = tiny_model()
    before = [(name, id(weight)) for name, weight in model.named_parameters()]
    convert(model, "fp32", CPU)
    assert [(name, id(weight)) for name, weight in model.named_parameters()] == before


def test_int8_is_for_ctranslate2_alone() -> None:
    with pytest.raises(NmtError, match="precision int8 is for CTranslate2; use the engine ctran"):
        convert(tiny_model(), "int8", CPU)

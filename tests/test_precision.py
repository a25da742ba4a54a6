"""The number format of matrix products."""

from __future__ import annotations

import pytest
import torch

from nmt.precision import autocast, pick_precision

CPU = torch.device("cpu")


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
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == probe, raising=False)
    assert pick_precision("auto", CPU) == expected


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

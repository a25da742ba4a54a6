"""Where a GPU has kernels for packs; tests/test_gpu.py runs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nmt.models.kernels import gpu


@pytest.mark.parametrize(
    ("changes", "capability", "expected"),
    [
        ({}, (8, 0), True),
        ({"device": torch.device("cpu")}, (8, 0), False),
        ({"dtype": torch.float32}, (8, 0), False),
        ({"widths": (6, 6)}, (8, 0), False),
        ({"widths": (264, 264)}, (8, 0), False),
        ({"widths": (64, 32)}, (8, 0), False),
        ({"dropout": 0.1}, (8, 0), False),
        ({}, (7, 5), False),
    ],
)
def test_the_fused_kernel_is_for_half_precision_on_a_newer_gpu(
    changes: dict[str, Any],
    capability: tuple[int, int],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(gpu, "_has_varlen_attn", lambda: True)
    usual = {
        "device": torch.device("cuda"),
        "dtype": torch.bfloat16,
        "widths": (64, 64),
        "dropout": 0.0,
    }
    assert gpu.has_flash(**{**usual, **changes}) is expected


def test_the_signature_that_is_called_is_that_of_torch() -> None:
    pytest.importorskip("torch.nn.attention.varlen")
    assert gpu._has_varlen_attn()

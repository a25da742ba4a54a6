"""Compares the Triton kernels of packs, interpreted on a CPU, with attention on rows.

A program of its own: Triton reads TRITON_INTERPRET when the kernels are defined. Prints one line
for each case, with the relative errors of the output and of the gradients.
"""

from __future__ import annotations

import numpy as np
import torch

from nmt.data.packing import Pack, Packing
from nmt.models.kernels.packs import RowAttention
from nmt.models.kernels.triton import PackAttention

HEADS = 2
LENGTHS = np.array([[60, 2, 5, 170, 9, 9, 1, 33], [70, 1, 3, 150, 20, 8, 2, 40]])
"""Of sources and targets: some blocks hold many sentences, some sentences many blocks."""


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def sides(packs: tuple[Pack, Pack]) -> list[torch.Tensor]:
    """What the kernels read of the packs of queries and of keys."""
    return [*(pack.sentence_of_tokens for pack in packs), *(pack.ends for pack in packs)]


def compare(kind: str, dtype: torch.dtype, width: int) -> None:
    """Print the errors of self-attention, causal self-attention or cross-attention."""
    packing = Packing.from_lengths(*LENGTHS)
    of_keys = packing.target if kind == "causal" else packing.source
    of_queries = packing.source if kind == "self" else packing.target
    shapes = [(of_queries, 1), (of_keys, 2)] if kind == "cross" else [(of_queries, 3)]
    generator = torch.Generator().manual_seed(1)
    parts = [
        torch.randn(int(pack.lengths.sum()), count * HEADS * width, generator=generator)
        for pack, count in shapes
    ]
    d_output = torch.randn(len(parts[0]), HEADS * width, generator=generator)
    found, expected = (
        [part.to(to, copy=True).requires_grad_() for part in parts] for to in (dtype, torch.float32)
    )
    packs = (of_queries, of_keys)
    output = PackAttention.apply(HEADS, kind == "causal", *sides(packs), *found)
    output.backward(d_output.to(dtype))
    rows = RowAttention.apply(packs, HEADS, kind == "causal", 0.0, *expected)
    rows.backward(d_output)
    pairs = [(output, rows), *((a.grad, b.grad) for a, b in zip(found, expected, strict=True))]
    print(kind, dtype, width, *(error(*pair) for pair in pairs), flush=True)


def compare_without_keys() -> None:
    """Print the largest output of queries without keys, and how many gradients are not finite."""
    packing = Packing.from_lengths(np.array([0, 70, 5]), np.array([64, 3, 4]))
    packs = packing.target, packing.source
    parts = [
        torch.ones(int(pack.lengths.sum()), count * 16).requires_grad_()
        for pack, count in zip(packs, (1, 2), strict=True)
    ]
    output = PackAttention.apply(1, False, *sides(packs), *parts)
    output.sum().backward()
    assert torch.allclose(output[64:], torch.ones(()))
    infinite = sum(int((~part.grad.isfinite()).sum()) for part in parts)
    print("keyless", torch.float32, 16, float(output[:64].abs().max()), infinite)


if __name__ == "__main__":
    compare_without_keys()
    for kind in ("self", "causal", "cross"):
        for dtype, width in ((torch.float32, 16), (torch.float32, 64), (torch.float16, 32)):
            compare(kind, dtype, width)

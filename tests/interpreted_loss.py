"""Compares the Triton kernel of the loss, interpreted on a CPU, with operators of torch.

A program of its own: Triton reads TRITON_INTERPRET when the kernel is defined. Prints one line for
each case, with the relative errors of the terms of the loss and of the gradient. On a GPU,
tests/test_gpu.py calls the function.
"""

from __future__ import annotations

import torch

from nmt.training.losses.output_layer import differentiate_

TOKENS, VOCABULARY = 5, 9000
"""The vocabulary is no multiple of what the kernel computes at once, and more than that."""


def errors(dtype: torch.dtype, weighted: bool, device: str) -> list[float]:
    """The errors of three terms and of the gradient; the first token is sure of its label."""
    from nmt.training.losses import kernels  # needs Triton

    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(TOKENS, VOCABULARY, generator=generator)).to(dtype)
    labels = torch.tensor([8999, 7, 8191, 8192, 1])
    logits[0, labels[0]] = 30.0
    weights = torch.rand(TOKENS, generator=generator).to(device) if weighted else None
    outcomes = []
    for differentiate, to in ((kernels.differentiate_, dtype), (differentiate_, torch.float32)):
        table = logits.to(device, to, copy=True)
        terms, gradient = differentiate(table, labels.to(device), weights, 0.9, 0.05, True)
        outcomes.append([*terms, gradient])
    return [
        float((found.float() - expected).norm() / expected.norm())
        for found, expected in zip(*outcomes, strict=True)
    ]


if __name__ == "__main__":
    for dtype in (torch.float32, torch.float16):
        for weighted in (False, True):
            print(dtype, *errors(dtype, weighted, "cpu"), flush=True)

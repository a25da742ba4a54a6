"""Compares the Triton kernels between matrix products, interpreted on a CPU, with float64.

A program of its own: Triton reads TRITON_INTERPRET when the kernels are defined. Prints one line
for each case, with relative errors. On a GPU, tests/test_gpu.py calls the functions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.models import architectures

ROWS = 300
"""More than a program of the gradient of ReLU computes, and no multiple of it."""

NORMALISED, PROGRAMS = 40, 16
"""Rows of a norm, and programs that share them in the backward pass."""


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double().cpu() - expected).norm() / expected.detach().norm())


def add_norm_errors(dtype: torch.dtype, width: int, dropout: float, device: str) -> list[float]:
    """Errors of the output and of four gradients, and of the share of elements that are kept.

    The sublayer's output has the dtype of matrix products, and the residual stream float32.
    """
    from nmt.models.kernels import sublayers  # needs Triton

    sublayers.PROGRAMS = PROGRAMS
    generator = torch.Generator().manual_seed(1)
    alpha, epsilon = 1.7, 1e-6
    x, sublayer, d_output = torch.randn(3, NORMALISED, width, generator=generator)
    weight, bias = torch.randn(2, width, generator=generator)
    inputs = [x, sublayer.to(dtype), weight, bias]
    found = [part.to(device, copy=True).requires_grad_() for part in inputs]
    output = sublayers.AddNorm.apply(*found, alpha, dropout, epsilon)
    output.backward(d_output.to(device))
    # Both inputs get the same gradient, but for the factor of the one and the dropout of the other.
    gradients = [part.grad for part in found]
    kept = alpha * gradients[1].double() / gradients[0].double()
    kept = torch.where(kept.abs() > 0.5, 1 / (1 - dropout), 0.0).cpu()
    exact = [part.double().requires_grad_() for part in inputs]
    added = alpha * exact[0] + kept * exact[1]
    expected = F.layer_norm(added, (width,), *exact[2:], epsilon)
    expected.backward(d_output.double())
    pairs = [(output, expected), *zip(gradients, (part.grad for part in exact), strict=True)]
    share = abs(float((kept > 0).double().mean()) - (1 - dropout))
    return [*(error(*pair) for pair in pairs), share]


def linear_relu_errors(dtype: torch.dtype, columns: int, device: str) -> list[float]:
    """Errors of the output and of three gradients."""
    from nmt.models.kernels.sublayers import LinearRelu  # needs Triton

    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((ROWS, 32), (columns, 32), (columns,))
    ]
    d_output = torch.randn(ROWS, columns, generator=generator).to(dtype)
    found = [part.to(device, copy=True).requires_grad_() for part in inputs]
    output = LinearRelu.apply(*found)
    output.backward(d_output.to(device))
    exact = [part.double().requires_grad_() for part in inputs]
    before = F.linear(*exact)
    # Where rounding moves a number over zero, either side is right.
    expected = before * (output.detach().cpu() > 0)
    expected.backward(d_output.double())
    pairs = [
        (output, before.relu()),
        *((a.grad, b.grad) for a, b in zip(found, exact, strict=True)),
    ]
    return [error(*pair) for pair in pairs]


def fp8_differences(fp8: torch.dtype, device: str) -> list[float]:
    """Numbers that are rounded unlike by torch, and the error of the largest value."""
    from nmt.models.kernels.sublayers import round_to_fp8  # needs Triton

    x = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 100
    x[:3] = torch.tensor([1e6, float("nan"), float("-inf")])
    largest = torch.zeros(1, device=device)
    found = round_to_fp8(x[3:].to(device), torch.full((1,), 3.0, device=device), largest, fp8)
    special = round_to_fp8(x[:3].to(device), torch.ones(1, device=device), largest.clone(), fp8)
    limit = torch.finfo(fp8).max
    expected = (3 * x[3:]).clamp(-limit, limit).to(fp8).float()
    unlike = found.cpu().float() != expected
    wrong = special.float().cpu().nan_to_num(-1.0).tolist() != [limit, -1.0, -1.0]
    if device == "cpu":
        # Triton 3.9 interprets casts without the carry to the next power of two, and NaN as 384.
        unlike &= expected.abs().log2() % 1 != 0
        wrong = False
    return [int(unlike.sum()) + wrong, abs(float(largest) - float(x[3:].abs().max()))]


def model_errors() -> list[float]:
    """Errors of a Transformer's output and gradients with all these kernels, on a CPU."""
    from nmt.models.kernels import gpu

    torch.manual_seed(1)
    sizes = {"d_model": 32, "d_ff": 48, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    config = replace(architectures["transformer_base"], **sizes, dropout=0.0)
    model = config.build(40, 40, True)
    source, target = torch.randint(4, 40, (2, 3, 7))
    outcomes = []
    for is_used in (False, True):
        gpu._is_used = lambda name, x, is_used=is_used: is_used
        model.zero_grad()
        output = model(source, target)
        output.square().sum().backward()
        gradients = [weight.grad.double() for weight in model.parameters()]
        outcomes.append([output.detach().double(), torch.cat([x.flatten() for x in gradients])])
    return [error(*pair) for pair in zip(*reversed(outcomes), strict=True)]


if __name__ == "__main__":
    print("model", torch.float32, *model_errors(), flush=True)
    for dtype in (torch.float32, torch.float16):
        for width, dropout in ((128, 0.1), (48, 0.0), (512, 0.5)):
            print("add_norm", dtype, *add_norm_errors(dtype, width, dropout, "cpu"), flush=True)
        print("linear_relu", dtype, *linear_relu_errors(dtype, 200, "cpu"), flush=True)
    for fp8 in (torch.float8_e4m3fn, torch.float8_e5m2):
        print("fp8", fp8, *fp8_differences(fp8, "cpu"), flush=True)

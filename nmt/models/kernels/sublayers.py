"""Triton kernels of what a Transformer computes between its matrix products.

- "Add & Norm" with its dropout: one kernel forward and one backward, instead of ten operators.
- The gradient of ReLU together with the gradient of the bias before it.
- Rounding to fp8, together with the largest value.

The backward pass of a norm draws the dropout again from its seed and computes the norm again, so
nothing but the inputs is kept. The module needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt.models.kernels.triton import on_device_of

LEVELS = 1 << 16
"""Number of values of a random number, of which eight come from one call of the generator."""


@triton.jit
def _kept(seed, row, LEVEL: tl.constexpr, BLOCK: tl.constexpr):
    """Return 0 with probability LEVEL / LEVELS for each element of a row, else the scale."""
    # One call makes four words of 32 bits: the generator is the dearest part of a dropout.
    a, b, c, d = tl.randint4x(tl.load(seed), row * (BLOCK // 8) + tl.arange(0, BLOCK // 8))
    words = tl.join(tl.join(a, b), tl.join(c, d))  # [BLOCK / 8, 2, 2]
    halves = tl.join(words & 0xFFFF, (words >> 16) & 0xFFFF)
    return tl.where(tl.reshape(halves, (BLOCK,)) >= LEVEL, 65536.0 / (65536 - LEVEL), 0.0)


@triton.jit
def _added(x, sublayer, at, inside, kept, ALPHA: tl.constexpr, LEVEL: tl.constexpr):
    """Return ALPHA times the residual stream, plus the sublayer's output after dropout."""
    stream = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    output = tl.load(sublayer + at, mask=inside, other=0.0).to(tl.float32)
    if LEVEL:
        output *= kept
    return stream * ALPHA + output


@triton.jit
def _normalised(added, inside, EPSILON: tl.constexpr, WIDTH: tl.constexpr):
    """Return a row with mean 0 and variance 1, and the factor that gives it its variance."""
    centred = tl.where(inside, added - tl.sum(added, 0) / WIDTH, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + EPSILON)
    return centred * factor, factor


@triton.jit
def add_norm(
    x, sublayer, weight, bias, seed, output,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ALPHA: tl.constexpr, LEVEL: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Compute LayerNorm(ALPHA x + Dropout(sublayer)) of a row."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside, at = columns < WIDTH, row.to(tl.int64) * WIDTH + columns
    kept = _kept(seed, row, LEVEL, BLOCK) if LEVEL else 1.0
    added = _added(x, sublayer, at, inside, kept, ALPHA, LEVEL)
    normalised, _ = _normalised(added, inside, EPSILON, WIDTH)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + at, (normalised * gain + shift).to(output.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_gradient(
    x, sublayer, weight, seed, d_output, d_x, d_sublayer, d_weight, d_bias, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ALPHA: tl.constexpr, LEVEL: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of some rows, and their share of the gradients of gain and bias."""
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    of_gain = tl.zeros((BLOCK,), tl.float32)
    of_shift = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * WIDTH + columns
        kept = _kept(seed, row, LEVEL, BLOCK) if LEVEL else 1.0
        added = _added(x, sublayer, at, inside, kept, ALPHA, LEVEL)
        normalised, factor = _normalised(added, inside, EPSILON, WIDTH)
        gradient = tl.load(d_output + at, mask=inside, other=0.0).to(tl.float32)
        of_gain += gradient * normalised
        of_shift += gradient
        gradient *= gain
        # Moving all elements alike, or along the row itself, changes nothing after the norm.
        mean = tl.sum(gradient, 0) / WIDTH
        along = tl.sum(gradient * normalised, 0) / WIDTH
        d_added = (gradient - mean - along * normalised) * factor
        tl.store(d_x + at, (d_added * ALPHA).to(d_x.dtype.element_ty), mask=inside)
        if LEVEL:
            d_added *= kept
        tl.store(d_sublayer + at, d_added.to(d_sublayer.dtype.element_ty), mask=inside)
    # Summed later in a fixed order; atomic sums would differ from run to run.
    tl.store(d_weight + program * WIDTH + columns, of_gain, mask=inside)
    tl.store(d_bias + program * WIDTH + columns, of_shift, mask=inside)


PROGRAMS = 1024
"""Largest number of programs that share the rows of a backward pass; each has its own sums."""

WARPS = 4
"""Groups of 32 threads that compute a program."""


class AddNorm(torch.autograd.Function):
    """LayerNorm(alpha x + Dropout(sublayer)), and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sublayer: Tensor,
        weight: Tensor,
        bias: Tensor,
        alpha: float,
        dropout: float,
        epsilon: float,
    ) -> Tensor:
        """Return the normalised sum, of the shape and dtype of `x`.

        Args:
            ctx: autograd's context.
            x: the residual stream [..., D], contiguous.
            sublayer: the sublayer's output [..., D].
            weight: the norm's gain [D].
            bias: the norm's bias [D].
            alpha: factor of the stream.
            dropout: rate, rounded to a multiple of 1 / `LEVELS`.
            epsilon: number that is added to the variance.
        """
        width = x.shape[-1]
        ctx.constants = {
            **{"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "num_warps": WARPS},
            **{"ALPHA": alpha, "LEVEL": round(dropout * LEVELS), "EPSILON": epsilon},
        }
        sublayer = sublayer.contiguous()
        # On the device: a number of the host would be the same in each replay of a CUDA graph.
        seed = torch.randint(1 << 31, (1,), device=x.device) if dropout else weight
        output = torch.empty_like(x)
        with on_device_of(x):
            add_norm[(x.numel() // width,)](
                x, sublayer, weight, bias, seed, output, **ctx.constants
            )
        ctx.save_for_backward(x, sublayer, weight, seed)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of stream, sublayer, gain and bias."""
        x, sublayer, weight, seed = ctx.saved_tensors
        width = x.shape[-1]
        rows = x.numel() // width
        programs = min(rows, PROGRAMS)
        d_x, d_sublayer = torch.empty_like(x), torch.empty_like(sublayer)
        d_weight, d_bias = weight.new_empty(2, programs, width, dtype=torch.float32)
        with on_device_of(x):
            add_norm_gradient[(programs,)](
                *(x, sublayer, weight, seed, d_output.contiguous()),
                *(d_x, d_sublayer, d_weight, d_bias, rows),
                **ctx.constants,
            )
        d_weight, d_bias = (part.sum(0).to(weight.dtype) for part in (d_weight, d_bias))
        return d_x, d_sublayer, d_weight, d_bias, None, None, None


@triton.jit
def relu_gradient(
    d_output, output, gradient, sums, rows,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the gradient before a ReLU, of ROWS rows and WIDE columns, and its sums by column."""
    first, columns = tl.program_id(1) * ROWS, tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((WIDE,), tl.float32)
    for begin in range(first, tl.minimum(first + ROWS, rows), TALL):
        row = begin + tl.arange(0, TALL)
        inside = (row < rows)[:, None] & (columns < COLUMNS)[None, :]
        at = row[:, None].to(tl.int64) * COLUMNS + columns[None, :]
        passed = tl.load(output + at, mask=inside, other=0.0) > 0
        values = tl.where(passed, tl.load(d_output + at, mask=inside, other=0.0), 0.0)
        tl.store(gradient + at, values.to(gradient.dtype.element_ty), mask=inside)
        total += tl.sum(values.to(tl.float32), 0)
    tl.store(sums + tl.program_id(1) * COLUMNS + columns, total, mask=columns < COLUMNS)


ROWS, TALL, WIDE = 256, 16, 128
"""Rows of a program, rows that it computes at once, and its columns."""


class LinearRelu(torch.autograd.Function):
    """max(0, x W + b), and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the activations [P, F], of inputs [P, D], a weight [F, D] and a bias [F]."""
        with torch.autocast(x.device.type, enabled=False):
            # cuBLAS adds the bias and takes the maximum before it writes the product.
            output: Tensor = torch.ops.aten._addmm_activation(bias, x, weight.t())
        ctx.save_for_backward(x, weight, output)
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the inputs, the weight and the bias."""
        x, weight, output = ctx.saved_tensors
        rows, columns = output.shape
        gradient = torch.empty_like(output)
        programs = triton.cdiv(columns, WIDE), triton.cdiv(rows, ROWS)
        sums = output.new_empty(programs[1], columns, dtype=torch.float32)
        with on_device_of(output):
            relu_gradient[programs](
                *(d_output.contiguous(), output, gradient, sums, rows),
                **{"COLUMNS": columns, "ROWS": ROWS, "TALL": TALL, "WIDE": WIDE},
            )
        return gradient @ weight, gradient.t() @ x, sums.sum(0).to(weight.dtype)


@triton.jit
def fp8(x, scale, output, largest, count, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    """Write scaled numbers in fp8, and raise the largest absolute value."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    sizes = tl.abs(numbers)
    tl.atomic_max(largest, tl.max(sizes, 0))
    scaled = numbers * tl.load(scale)
    # Not by a minimum, which would turn NaN into a number.
    scaled = tl.where(scaled > LIMIT, LIMIT, tl.where(scaled < -LIMIT, -LIMIT, scaled))
    scaled = tl.where(sizes == float("inf"), float("nan"), scaled)
    tl.store(output + at, scaled.to(output.dtype.element_ty), mask=at < count)


ROUNDED = 4096
"""Numbers that a program rounds."""


def round_to_fp8(x: Tensor, scale: Tensor, largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of a contiguous tensor times a scale [1], in fp8, within its limits.

    Raises `largest` [1] to their largest absolute value before scaling, unless it is higher.
    """
    rounded = torch.empty_like(x, dtype=dtype)
    with on_device_of(x):
        fp8[(triton.cdiv(x.numel(), ROUNDED),)](
            *(x, scale, rounded, largest, x.numel()),
            LIMIT=torch.finfo(dtype).max,
            BLOCK=ROUNDED,
        )
    return rounded

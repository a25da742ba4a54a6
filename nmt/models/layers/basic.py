"""Basic layers: normalisation, dropout, residual modules, initial weights and embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.errors import NmtError

Norm = Literal["layer_norm", "rms_norm"]

Placement = Literal["post_norm", "pre_norm", "deep_norm"]


def make_norm(norm: Norm, width: int, epsilon: float = 1e-6) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    RMSNorm subtracts no mean and has no bias.
    """
    if norm == "rms_norm":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon)


def deep_norm_scales(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[float, float]]:
    """Return DeepNorm's (alpha, beta) of each stack of an encoder-decoder (the paper's figure 2).

    Alpha scales the residual stream. Beta scales the initial weights of feed-forward layers, values
    and attention output.
    """
    # N^4 M, of N encoder layers and M decoder layers.
    depth = encoder_layers**4 * decoder_layers
    return {
        "encoder": (0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16)),
        "decoder": ((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25),
    }


class Dropout(nn.Module):
    """Zero each element with probability `rate` in training (Srivastava et al. 2014).

    The remaining elements are scaled by 1 / (1 - rate). ``torch.nn.functional.dropout`` draws one
    Bernoulli number per element, which on a CPU is the largest cost of training outside matrix
    products. Here one 64-bit draw decides eight elements.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with some elements zeroed; same shape and dtype."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling():  # compiled: own draws
            return x * keep_mask(x, self.rate)
        return F.dropout(x, self.rate)


@torch.no_grad()
def keep_mask(x: Tensor, rate: float) -> Tensor:
    """Return 0 with probability `rate`, else 1 / (1 - rate); shape, dtype and device of `x`."""
    if x.device.type != "cpu":
        return F.dropout(torch.ones_like(x), rate)
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
    # From -2^63, because the default range leaves the sign bit 0.
    eighths = words.random_(-(1 << 63), None).view(torch.int8)[: x.numel()]
    # If the rate lies between two of the 256 levels, choose one at random for the whole mask.
    level = math.floor(rate * 256 + torch.rand(()).item())
    if level == 256:
        return torch.zeros_like(x)
    kept = torch.empty_like(x)  # converting a bool takes five times as long
    # Bytes are signed here, so the level moves down by 128.
    torch.ge(eighths.view(x.shape), level - 128, out=kept)
    return kept.mul_(1.0 / (1.0 - rate))


class ResidualModule(nn.Module):
    """A layer, or the attention in one, that training may leave out, recompute or compile.

    The forward pass maps its first argument to an output of the same shape: a function of its
    arguments, its weights and random numbers. No such module of a model contains another one that
    is treated in the same way.

    - Layer dropout leaves out random layers (Huang et al. 2016, *stochastic depth*; Fan et al.
      2020, LayerDrop). The outputs of the other layers stay as they are, as in LayerDrop.
    - Activation checkpointing (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*)
      runs the forward pass again in the backward pass, instead of keeping its activations. Both
      passes draw the same random numbers, so the gradients have the same bits.
    """

    drop_rate = 0.0
    """Probability with which training leaves out the module, for a whole micro-batch."""
    is_recomputed = False
    """Whether training recomputes the activations."""
    compiled: Callable[..., Tensor] | None = None
    """The compiled forward pass for training; validation and search have other shapes."""

    def __call__(self, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """Compute the module; in training, as these attributes say."""
        compute: Callable[..., Tensor] = super().__call__
        # Drawn on the host, also for a GPU, which then need not be waited for.
        if self.training and self.drop_rate and torch.rand(()).item() < self.drop_rate:
            compute = _WithoutUse.apply
            arguments, named = (*_tensors(arguments), *self.parameters()), {}
        elif self.training and torch.is_grad_enabled():
            if self.is_recomputed:
                # The reentrant variant needs an input with a gradient, and takes no named
                # arguments.
                compute = partial(checkpoint, compute, use_reentrant=False)
            elif self.compiled is not None and not self._forward_hooks:  # which it would not call
                compute = self.compiled
        return compute(x, *arguments, **named)


def _tensors(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in lists of them."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from argument


class _WithoutUse(torch.autograd.Function):
    """Returns the first input; the gradients of all other inputs are zero.

    Without these zeros, data parallelism would wait for gradients of the layer's weights forever,
    and an optimizer would treat a layer that was left out unlike one whose gradient is zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *unused: Tensor) -> Tensor:
        """Return `x`; the result depends on the unused tensors for the gradient alone."""
        ctx.unused = [(tensor.dtype, tensor.device, tensor.shape) for tensor in unused]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `x`, and gradients of zero for the unused tensors."""
        zeros = (
            # expand stores one number, however large the weight is.
            torch.zeros((), dtype=dtype, device=device).expand(shape) if wanted else None
            for (dtype, device, shape), wanted in zip(
                ctx.unused, ctx.needs_input_grad[1:], strict=True
            )
        )
        return gradient, *zeros


@runtime_checkable
class HoldsMatrices(Protocol):
    """A module with weights that each hold several matrices side by side, computed at once."""

    def fused_matrices(self) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Yield each such weight with the numbers of rows of its matrices."""


# Initial weights are tensor2tensor's of June 2017, the code of the paper.
def glorot(linear: nn.Linear) -> nn.Linear:
    """Set weights to U(-b, b), b = sqrt(6 / (fan_in + fan_out)), biases to 0; return the layer."""
    # The paper names no initialisation; this is tensor2tensor's of June 2017, over the fan of the
    # whole fused matrix.
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def embedding(size: int, width: int) -> TokenEmbedding:
    """Return an embedding table N(0, std width^-0.5): the first loss is near ln V even if tied."""
    table = TokenEmbedding(size, width)
    # With a tied output layer, logits then have a variance near 1.
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


class TokenEmbedding(nn.Embedding):
    """Embedding table that sets the vectors of random tokens to zero in training.

    The other vectors stay as they are, as in the token cutoff of Shen et al. (2020).
    """

    cutoff = 0.0
    """Probability with which a token's vector is zero in training."""

    zero_token: int | None = None
    """Token whose vector is always zeros, although an output layer may share its row."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors [..., D] of tokens [...]."""
        embedded = self.with_zeros(super().forward(tokens), tokens)
        if not self.training or self.cutoff == 0.0:
            return embedded
        # Not scaled up as dropout is: the other tokens keep the vectors that search will see.
        return embedded * (torch.rand(tokens.shape, device=tokens.device) >= self.cutoff)[..., None]

    def with_zeros(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """Return the vectors [..., D] of tokens [...], with zeros for `zero_token`."""
        if self.zero_token is None:
            return embedded
        return embedded * (tokens != self.zero_token)[..., None]


def set_cutoff(model: nn.Module, cutoff: float) -> None:
    """Set the probability with which each token's vector is zero in training.

    Raises:
        NmtError: the embeddings of the model cannot do that.
    """
    for table in _tables(model):
        table.cutoff = cutoff


@contextmanager
def cutoff_of(model: nn.Module, cutoff: float) -> Iterator[None]:
    """Set the cutoff of the model's tokens within the context."""
    tables = _tables(model)
    before = [table.cutoff for table in tables]
    set_cutoff(model, cutoff)
    try:
        yield
    finally:
        for table, usual in zip(tables, before, strict=True):
            table.cutoff = usual


def _tables(model: nn.Module) -> list[TokenEmbedding]:
    tables = [module for module in model.modules() if isinstance(module, TokenEmbedding)]
    if not tables:
        raise NmtError(
            f"{type(model).__name__} has no nmt.models.layers.basic.TokenEmbedding, which token "
            "dropout and simcut need; take train.token_dropout 0 and another loss"
        )
    return tables

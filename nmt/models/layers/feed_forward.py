"""Feed-forward layers, which map each position independently: [..., D] to [..., D]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.kernels.gpu import own_linear_relu
from nmt.models.layers.basic import Dropout, glorot
from nmt.recipe.registry import Registry


@dataclass(frozen=True, kw_only=True)
class FeedForwardPart(ABC):
    """Feed-forward layer of a Transformer: the base class of all of them."""

    registry: ClassVar[Registry[FeedForwardPart]]

    name: str = ""
    """Name of the feed-forward layer."""

    @abstractmethod
    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """Return a new layer, [..., width] to [..., width].

        Args:
            width: D, the width of input and output.
            inner: F, the width between the two matrices.
            dropout: dropout rate on the inner activations.
        """


feed_forwards: Registry[FeedForwardPart] = Registry("feed-forward layer")
FeedForwardPart.registry = feed_forwards


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, section 3.3)."""

    def __init__(
        self,
        width: int,
        inner: int,
        dropout: float,
        activation: Callable[
            [Tensor], Tensor
        ] = torch.relu_,  # in place: its input is not used again
    ) -> None:
        super().__init__()
        self.inner = glorot(nn.Linear(width, inner))
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.outer = glorot(nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        # As [P, D]: with more dimensions, a linear layer returns a view. Changing a view in place
        # makes the backward pass copy the gradient.
        rows = x.reshape(-1, x.shape[-1])
        is_relu = self.activation is torch.relu_
        inner = own_linear_relu(rows, self.inner) if is_relu else None
        if inner is None:
            inner = self.activation(self.inner(rows))
        # Dropout inside the layer is tensor2tensor's of October 2017; the paper has none.
        output: Tensor = self.outer(self.dropout(inner))
        return output.view_as(x)


@feed_forwards.register("relu")
@dataclass(frozen=True, kw_only=True)
class Relu(FeedForwardPart):
    """max(0, x W1 + b1) W2 + b2, the paper's."""

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return FeedForward(width, inner, dropout)


@feed_forwards.register("gelu")
@dataclass(frozen=True, kw_only=True)
class Gelu(FeedForwardPart):
    """gelu(x W1 + b1) W2 + b2, with gelu(x) = x Phi(x) (Hendrycks and Gimpel 2016)."""

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return FeedForward(width, inner, dropout, F.gelu)


@feed_forwards.register("gelu_tanh")
@dataclass(frozen=True, kw_only=True)
class GeluTanh(FeedForwardPart):
    """The same, with gelu approximated by tanh, as in the code of GPT-2."""

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return FeedForward(width, inner, dropout, partial(F.gelu, approximate="tanh"))


@feed_forwards.register("swish")
@dataclass(frozen=True, kw_only=True)
class Swish(FeedForwardPart):
    """swish(x W1 + b1) W2 + b2, with swish(x) = x sigmoid(x) (Ramachandran et al. 2017)."""

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return FeedForward(width, inner, dropout, F.silu)


@feed_forwards.register("swiglu")
@dataclass(frozen=True, kw_only=True)
class SwiGlu(FeedForwardPart):
    """(swish(x W) * x V) W2 without biases (Shazeer 2020).

    It has three matrices, the other layers have two. For equal size, set two thirds of their d_ff.
    """

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return GatedFeedForward(width, inner, dropout)


class GatedFeedForward(nn.Module):
    """SwiGLU; one matrix of twice the width computes the gate and the linear part."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.inner = glorot(nn.Linear(width, 2 * inner, bias=False))
        self.dropout = Dropout(dropout)
        self.outer = glorot(nn.Linear(inner, width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        gate, linear = self.inner(x).chunk(2, dim=-1)
        output: Tensor = self.outer(self.dropout(F.silu(gate) * linear))
        return output

    def fused_matrices(self) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Yield the matrix of the gate and the linear part."""
        yield self.inner.weight, 2 * [self.outer.in_features]

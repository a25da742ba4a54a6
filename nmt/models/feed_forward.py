"""Feed-forward layers, which map each position independently: [..., D] to [..., D]."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.dropout import Dropout
from nmt.models.initialization import glorot
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
        inner = self.inner(x.reshape(-1, x.shape[-1]))
        output: Tensor = self.outer(self.dropout(self.activation(inner)))
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


@feed_forwards.register("mixture_of_experts")
@dataclass(frozen=True, kw_only=True)
class MixtureOfExpertsPart(FeedForwardPart):
    """Several ReLU layers, and a gate that chooses one or two of them for each position.

    Choosing one is Switch (Fedus et al. 2021), two is GShard (Lepikhin et al. 2020). Experts have
    no capacity limit, so the output of a position does not depend on the rest of the batch.
    """

    experts: int = 8
    """Feed-forward layers to choose from."""
    chosen: int = 2
    """Number of experts for each position, 1 or 2."""
    balance: float = 0.01
    """Weight of the load-balancing loss, per target token."""

    def __post_init__(self) -> None:
        if self.chosen not in (1, 2):
            raise ValueError(f"chosen must be 1 or 2, not {self.chosen}")
        if self.experts < self.chosen:
            raise ValueError(f"experts must be at least {self.chosen}, not {self.experts}")
        if not 0.0 <= self.balance < math.inf:
            raise ValueError(f"balance must not be negative or infinite, is {self.balance}")

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        experts = [FeedForward(width, inner, dropout) for _ in range(self.experts)]
        return MixtureOfExperts(width, experts, self.chosen, self.balance)


class Gate(nn.Linear):
    """Linear layer that is computed in float32 whatever the precision (Fedus et al. 2021, 2.4)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores [P, E] of the experts at each position of `x` [P, D]."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class MixtureOfExperts(nn.Module):
    """Feed-forward layers, and the gate that routes positions to them."""

    def __init__(self, width: int, experts: list[FeedForward], chosen: int, balance: float) -> None:
        super().__init__()
        self.gate = glorot(Gate(width, len(experts), bias=False))
        self.experts = nn.ModuleList(experts)
        self.chosen, self.balance = chosen, balance
        self.routes: tuple[Tensor, Tensor] | None = None
        """Gate probabilities [P, E] and first choices [P] of the last training forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the experts' outputs, [..., D] as `x`."""
        flat = x.reshape(-1, x.shape[-1])  # [P, D]
        probabilities = self.gate(flat).softmax(dim=-1)  # [P, E]
        shares, chosen = probabilities.topk(self.chosen)
        if self.chosen > 1:  # a single weight stays: it gives the gate its gradient
            shares = shares / shares.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # [P x chosen], by expert
        counts = (
            chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        )  # waits for the GPU
        parts = torch.split_with_sizes(flat[order // self.chosen], counts)
        outputs = torch.cat(
            [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        )
        weighted = (outputs * shares.flatten()[order, None]).to(x.dtype)
        self.routes = (probabilities, chosen[:, 0]) if self.training else None
        in_place = torch.empty_like(weighted).index_copy(0, order, weighted)
        return in_place.view(-1, self.chosen, x.shape[-1]).sum(1).view_as(x)

    def imbalance(self, tokens: Tensor) -> Tensor | float:
        """Return the load-balancing loss, balance * E * sum(share of tokens * mean probability).

        The loss is lowest when all experts are chosen equally often.

        Args:
            tokens: [...] bool, the positions of the last training forward pass; False at padding.
        """
        if self.routes is None:
            return 0.0
        probabilities, first = self.routes
        counted = tokens.flatten()[:, None] / tokens.sum().clamp(min=1)  # [P, 1], weights
        experts = torch.arange(len(self.experts), device=first.device)
        share = ((first[:, None] == experts) * counted).sum(0)
        return self.balance * len(experts) * (share * (probabilities * counted).sum(0)).sum()


def imbalance(parts: Iterable[tuple[nn.Module | None, Tensor]]) -> Tensor | float:
    """Return the load-balancing loss of all mixtures of experts, per token.

    Args:
        parts: feed-forward layers, each with the mask of its positions; see
            :meth:`MixtureOfExperts.imbalance`.
    """
    mixtures = ((part, tokens) for part, tokens in parts if isinstance(part, MixtureOfExperts))
    return sum((mixture.imbalance(tokens) for mixture, tokens in mixtures), 0.0)


def unrouted_layers(model: nn.Module) -> Iterator[nn.Linear]:
    """Yield the linear layers of a model that are not part of a mixture of experts."""
    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    experts = {part for mixture in mixtures for part in mixture.modules()}
    linear = (module for module in model.modules() if isinstance(module, nn.Linear))
    return (module for module in linear if module not in experts)

"""Feed-forward layers, which see one position at a time: [..., D] to [..., D]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.dropout import Dropout
from nmt.models.initialization import glorot
from nmt.recipe.registry import Registry


@dataclass(frozen=True, kw_only=True)
class FeedForwardPart(ABC):
    """Which function of a position's state a layer computes."""

    registry: ClassVar[Registry[FeedForwardPart]]

    name: str = ""
    """Which feed-forward layer."""

    @abstractmethod
    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """The layer [..., width] to [..., width]; dropout is on its inner states."""


feed_forwards: Registry[FeedForwardPart] = Registry("feed-forward layer")
FeedForwardPart.registry = feed_forwards


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, section 3.3)."""

    def __init__(
        self,
        width: int,
        inner: int,
        dropout: float,
        activation: Callable[[Tensor], Tensor] = torch.relu_,  # in place: nobody else reads it
    ) -> None:
        super().__init__()
        self.inner = glorot(nn.Linear(width, inner))
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.outer = glorot(nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        # As [P, D]: of more dimensions a linear layer gives a view, and where a view is changed in
        # its place the backward pass copies the gradient.
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
    """The same with x Phi(x) for max(0, x) (Hendrycks and Gimpel 2016)."""

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return FeedForward(width, inner, dropout, F.gelu)


@feed_forwards.register("swiglu")
@dataclass(frozen=True, kw_only=True)
class SwiGlu(FeedForwardPart):
    """(swish(x W) * x V) W2 without biases (Shazeer 2020).

    It has three matrices where the others have two; two thirds of their d_ff make it as large.
    """

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        return GatedFeedForward(width, inner, dropout)


class GatedFeedForward(nn.Module):
    """SwiGLU; the gate's matrix and the other are one of twice the width."""

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
    """Several ReLU layers, of which a gate chooses one or two for each position.

    Choosing one is Switch (Fedus et al. 2021), two is GShard (Lepikhin et al. 2020). No expert
    has a limit of positions, so that a position gets the same whatever else is in the batch.
    """

    experts: int = 8
    """Feed-forward layers to choose from."""
    chosen: int = 2
    """How many of them a position goes through, 1 or 2."""
    balance: float = 0.01
    """Weight of the loss, per target token, that is least when all experts are chosen equally."""

    def __post_init__(self) -> None:
        if self.chosen not in (1, 2):
            raise ValueError(f"chosen must be 1 or 2, not {self.chosen}")
        if self.experts < self.chosen:
            raise ValueError(f"experts must be at least {self.chosen}, not {self.experts}")
        if self.balance < 0:
            raise ValueError(f"balance must not be negative, is {self.balance}")

    def build(self, width: int, inner: int, dropout: float) -> nn.Module:
        """A fresh layer."""
        experts = [FeedForward(width, inner, dropout) for _ in range(self.experts)]
        return MixtureOfExperts(width, experts, self.chosen, self.balance)


class MixtureOfExperts(nn.Module):
    """Feed-forward layers and the gate that chooses among them."""

    def __init__(self, width: int, experts: list[FeedForward], chosen: int, balance: float) -> None:
        super().__init__()
        self.gate = glorot(nn.Linear(width, len(experts), bias=False))
        self.experts = nn.ModuleList(experts)
        self.chosen, self.balance = chosen, balance
        self.routes: tuple[Tensor, Tensor] | None = None
        """Of the last forward in training: the gate's probabilities [P, E], first choices [P]."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        flat = x.reshape(-1, x.shape[-1])  # [P, D]
        probabilities = self.gate(flat).float().softmax(dim=-1)  # [P, E]
        shares, chosen = probabilities.topk(self.chosen)
        if self.chosen > 1:  # one alone keeps its probability, through which the gate learns
            shares = shares / shares.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # [P x chosen], by expert
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()  # waits, once
        parts = torch.split_with_sizes(flat[order // self.chosen], counts)
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        weighted = (made * shares.flatten()[order, None]).to(x.dtype)
        self.routes = (probabilities, chosen[:, 0]) if self.training else None
        in_place = torch.empty_like(weighted).index_copy(0, order, weighted)
        return in_place.view(-1, self.chosen, x.shape[-1]).sum(1).view_as(x)

    def imbalance(self, tokens: Tensor) -> Tensor | float:
        """Balance * E * sum(share of tokens * mean probability), which is least when even.

        Args:
            tokens: [...] bool, which positions of the last forward in training are no padding.
        """
        if self.routes is None:
            return 0.0
        probabilities, first = self.routes
        counted = tokens.flatten()[:, None] / tokens.sum()  # [P, 1], what each token counts
        experts = torch.arange(len(self.experts), device=first.device)
        share = ((first[:, None] == experts) * counted).sum(0)
        return self.balance * len(experts) * (share * (probabilities * counted).sum(0)).sum()

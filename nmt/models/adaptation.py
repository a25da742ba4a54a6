"""Small parts that are put on a trained model, and trained while its own weights stay as they are.

A part has no effect until it is trained. The weights of the model keep their names, so that a
checkpoint of the parts, which is small, goes with a checkpoint of the model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from nmt.errors import NmtError
from nmt.models.layers.feed_forward import FeedForward
from nmt.recipe.registry import Registry, nearest


@dataclass(frozen=True, kw_only=True)
class Adaptation(ABC):
    """Parts that are added to a trained model: the base class of all adaptations."""

    registry: ClassVar[Registry[Adaptation]]

    name: str = ""
    """Name of the adaptation."""

    @abstractmethod
    def put_on(self, model: nn.Module) -> None:
        """Put parts on a model, in place; the results of the model stay the same.

        Raises:
            NmtError: the model has no place for the parts.
        """

    @abstractmethod
    def merge_into(self, model: nn.Module) -> Adaptation | None:
        """Merge the parts into the weights of a model that has them, in place.

        Returns:
            The adaptation that the model still has: None if all parts were merged.
        """


adaptations: Registry[Adaptation] = Registry("adaptation")
Adaptation.registry = adaptations


class Part(nn.Module):
    """A part that an adaptation puts on a model."""


def adaptation_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of all parts of adaptations by name."""
    parts = (module for module in model.modules() if isinstance(module, Part))
    # By identity, because == compares tensors element by element.
    inside = {id(weight) for part in parts for weight in part.parameters()}
    return {name: weight for name, weight in model.named_parameters() if id(weight) in inside}


@adaptations.register("lora")
@dataclass(frozen=True, kw_only=True)
class LoRA(Adaptation):
    """Replaces the matrix W of a linear layer by W + (alpha / rank) B A (Hu et al. 2021).

    B A is merged into W for translation, so that the adapted model is as fast as the trained one.
    """

    rank: int = 8
    """Number of rows of A, and of columns of B."""
    alpha: float = 16.0
    """Factor of the product B A, times the rank."""
    targets: tuple[str, ...] = ("*",)
    """Linear layers that are adapted: shell patterns of their names in the model, such as
    "*.attention.*". The output layer is not."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, not {self.rank}")
        if not math.isfinite(self.alpha) or self.alpha == 0.0:
            raise ValueError(f"alpha must be finite and not 0, is {self.alpha}")
        if not self.targets:
            raise ValueError("targets must have a pattern, or nothing is trained")

    def put_on(self, model: nn.Module) -> None:
        """Add a product of two small matrices to linear layers, in place."""
        layers = {
            name: module
            for name, module in model.named_modules()
            # The output layer is often tied to the embeddings, which have no matrix product to
            # adapt.
            if isinstance(module, nn.Linear) and name != "output"
        }
        for pattern in self.targets:
            if not any(fnmatchcase(name, pattern) for name in layers):
                meant = nearest(pattern, layers) or next(iter(layers), "none")
                raise NmtError(
                    f"model.adaptation.targets: no linear layer matches {pattern!r}; "
                    f"the names are such as {meant!r}"
                )
        for name, layer in layers.items():
            if any(fnmatchcase(name, pattern) for pattern in self.targets):
                # Divided by the rank (the paper's section 4.1), so that another rank needs no other
                # learning rate.
                scale = self.alpha / self.rank
                low_rank = LowRank(layer.in_features, layer.out_features, self.rank, scale)
                _extend(layer, LowRankLinear, low_rank)

    @torch.no_grad()
    def merge_into(self, model: nn.Module) -> None:
        """Add each product to the matrix of its layer."""
        # A list, because `_shrink` changes the classes that the walk looks for.
        for layer in [module for module in model.modules() if isinstance(module, LowRankLinear)]:
            product = layer.part.product()
            _shrink(layer)
            if parametrize.is_parametrized(layer, "weight"):
                layer.weight = layer.weight + product  # as the inverse of the parametrization
            else:
                layer.weight.add_(product)


class LowRank(Part):
    """x A^T B^T, scaled; B begins as zeros."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(torch.empty(rank, inputs))  # A
        # Only one factor may be zero: if both were, neither would ever get a gradient.
        nn.init.normal_(self.down, std=inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))  # B

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        # The scale multiplies the narrow tensor, [..., rank], and not the wide output.
        return F.linear(F.linear(x, self.down) * self.scale, self.up)

    def product(self) -> Tensor:
        """Return the matrix [outputs, inputs] that the part multiplies by."""
        return self.scale * self.up @ self.down


class LowRankLinear(nn.Linear):
    """A linear layer with a low-rank part."""

    part: LowRank

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        adapted: Tensor = super().forward(x) + self.part(x)
        return adapted


@adaptations.register("adapters")
@dataclass(frozen=True, kw_only=True)
class Adapters(Adaptation):
    """x + W2 relu(W1 LayerNorm(x)) after each layer of a Transformer (Bapna and Firat 2019).

    Adapters cannot be merged: they stay parts of the model, and take time in translation.
    """

    d_bottleneck: int = 64
    """Inner width of an adapter."""

    def __post_init__(self) -> None:
        if self.d_bottleneck < 1:
            raise ValueError(f"d_bottleneck must be at least 1, not {self.d_bottleneck}")

    def put_on(self, model: nn.Module) -> None:
        """Put an adapter after each layer, in place."""
        layers: list[Any] = [part for part in model.modules() if hasattr(part, "adapter")]
        if not layers:
            raise NmtError(
                "model.adaptation: adapters follow the layers of a Transformer, and "
                f"{type(model).__name__} has none; take lora"
            )
        for layer in layers:
            # A norm of the layer knows the width of the model.
            layer.adapter = Adapter(layer.attention_norm.weight.numel(), self.d_bottleneck)

    def merge_into(self, model: nn.Module) -> Adaptation:
        """Leave the adapters where they are."""
        return self


class Adapter(Part):
    """x + W2 relu(W1 LayerNorm(x) + b1) + b2; W2 and b2 begin as zeros."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, inner, dropout=0.0)
        # Zeros make the adapter the identity, so the model begins as it was trained.
        nn.init.zeros_(self.feed_forward.outer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        adapted: Tensor = x + self.feed_forward(self.norm(x))
        return adapted


def _extend(module: nn.Module, kind: type[nn.Module], part: Part) -> None:
    """Give a module a part, and the methods of `kind`, which override its own class."""
    # A new class instead of a wrapper: the names of the trained weights must not change.
    module.__class__ = type(kind.__name__, (kind, type(module)), {})
    module.part = part


def _shrink(module: nn.Module) -> None:
    """Undo :func:`_extend`."""
    # `_extend` made a class of (kind, class before).
    module.__class__ = type(module).__bases__[1]
    del module.part

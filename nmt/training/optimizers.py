"""Optimizers by name: torch's own, with the paper's values as defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from nmt.registry import Registry


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ABC):
    """How gradients move weights; the learning rate comes from the schedule.

    Built ones are fused, and skip a step where the trainer sets their ``found_inf`` to one.
    """

    registry: ClassVar[Registry[OptimizerConfig]]

    name: str = ""
    """Which optimizer."""

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters, with a learning rate still to be set."""


optimizers: Registry[OptimizerConfig] = Registry("optimizer")
OptimizerConfig.registry = optimizers


@optimizers.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerConfig):
    """Adam (Kingma and Ba 2015) with the values of the paper's section 5.3."""

    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the first and second moments."""
    eps: float = 1e-9
    """Added to the root of the second moment."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.Adam, fused."""
        return torch.optim.Adam(parameters, lr=0.0, betas=self.betas, eps=self.eps, fused=True)


@optimizers.register("adamw")
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019); fairseq's ``adam``."""

    weight_decay: float = 0.01
    """Share of each weight that is taken off per update, times the learning rate."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.AdamW, fused."""
        return torch.optim.AdamW(
            parameters,
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


@optimizers.register("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerConfig):
    """Stochastic gradient descent, with momentum and Nesterov's form of it where asked for."""

    momentum: float = 0.0
    """Share of the last step that is taken again."""
    nesterov: bool = False
    """Whether the gradient is taken after the momentum's step ("nag")."""

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs a momentum")

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.SGD, fused."""
        optimizer = torch.optim.SGD(
            parameters, lr=0.0, momentum=self.momentum, nesterov=self.nesterov, fused=True
        )
        if self.momentum:
            # A first step that is skipped would leave the buffers as they were allocated.
            for weight in optimizer.param_groups[0]["params"]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        return optimizer

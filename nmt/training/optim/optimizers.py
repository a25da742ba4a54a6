"""Optimizers by name, torch's and two of our own, with the papers' values as defaults."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from nmt.errors import NmtError
from nmt.recipe.registry import Registry
from nmt.training.optim.muon import MuonWithAdamW, hidden_matrices
from nmt.training.optim.schedule_free import ScheduleFreeAdamW


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ABC):
    """An optimizer's settings; the learning rate comes from the schedule.

    A built optimizer skips a step if the trainer sets its ``found_inf`` to one. Torch's fused
    optimizers, Muon and schedule-free AdamW skip on the device; Adafactor and Adadelta wait for it.
    """

    registry: ClassVar[Registry[OptimizerConfig]]

    name: str = ""
    """Name of the optimizer."""

    can_be_sharded: ClassVar[bool] = True
    """Whether the optimizer can step a shard of each weight, for ``train.sharding: full``."""

    averages_weights: ClassVar[bool] = False
    """Whether the optimizer has an average of the weights, validated and saved in their place."""

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a torch optimizer of the model's trainable weights.

        The trainer sets the learning rate before each step. The optimizer's state of a weight is
        tensors by name; checkpoints store them, and a resumed run continues from them alone.

        Raises:
            NmtError: the optimizer does not fit the model.
        """


optimizers: Registry[OptimizerConfig] = Registry("optimizer")
OptimizerConfig.registry = optimizers


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a model that are not frozen; tied ones once."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} lies in [0, 1), not {value}")


def _check_positive(name: str, value: float) -> None:
    if value <= 0.0:
        raise ValueError(f"{name} must be more than 0, is {value}")


def _check_decay(weight_decay: float) -> None:
    if weight_decay < 0.0:
        raise ValueError(f"weight_decay must not be negative, is {weight_decay}")


def without(excluded: Iterable[nn.Parameter], weights: list[nn.Parameter]) -> list[nn.Parameter]:
    """Return the weights that are not among the excluded ones, in order."""
    # By identity, because == compares tensors element by element.
    identities = set(map(id, excluded))
    return [weight for weight in weights if id(weight) not in identities]


@optimizers.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerConfig):
    """Adam (Kingma and Ba 2015) with the values of the paper's section 5.3."""

    # PyTorch's second decay rate is 0.999.
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the first and second moments."""
    # Section 5.3. In fp16 this would be 0; the optimizer's state is float32.
    eps: float = 1e-9
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        for beta in self.betas:
            _check_share("betas", beta)
        _check_positive("eps", self.eps)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a fused ``torch.optim.Adam``."""
        # Fused: one kernel for all weights, and a `found_inf` that skips a step without waiting.
        return torch.optim.Adam(
            trainable(model), lr=0.0, betas=self.betas, eps=self.eps, fused=True
        )


@optimizers.register("adamw")
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019); fairseq's ``adam``."""

    weight_decay: float = 0.01
    """Share of each weight that is taken off per update, times the learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_decay(self.weight_decay)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a fused ``torch.optim.AdamW``."""
        return torch.optim.AdamW(
            trainable(model),
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


@optimizers.register("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerConfig):
    """Stochastic gradient descent, optionally with momentum or Nesterov momentum.

    ``nag`` has the values of Gehring et al. 2017 (section 4.2), who take `lr` 0.25 and
    `clip_norm` 0.1 with it.
    """

    momentum: float = 0.0
    """Share of the last step that is taken again."""
    can_be_sharded: ClassVar[bool] = False  # torch's fused form

    nesterov: bool = False
    """Whether the gradient is taken after the momentum's step ("nag")."""

    def __post_init__(self) -> None:
        _check_share("momentum", self.momentum)
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs a momentum")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a fused ``torch.optim.SGD``."""
        optimizer = torch.optim.SGD(
            trainable(model), lr=0.0, momentum=self.momentum, nesterov=self.nesterov, fused=True
        )
        if self.momentum:
            # Otherwise a skipped first step would leave the buffers uninitialised.
            for weight in optimizer.param_groups[0]["params"]:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        return optimizer


optimizers.add("nag", SGD(momentum=0.99, nesterov=True))


@optimizers.register("adafactor")
@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerConfig):
    """Adafactor (Shazeer and Stern 2018): second moments by rows and columns, for little memory.

    The schedule's rate is the greatest relative step: a weight moves by at most that share of its
    root mean square, and of 1 / sqrt(update). The paper takes a constant `lr` of 0.01.
    """

    can_be_sharded: ClassVar[bool] = False

    decay: float = 0.8
    """The second moments' decay rate at update t is 1 - t^-decay."""
    clip: float = 1.0
    """Greatest root mean square of a weight's update, before the learning rate; at least 1."""
    eps: float = 1e-30
    """Least second moment (the paper's first epsilon)."""
    min_scale: float = 1e-3
    """Least root mean square of a weight that its steps are relative to (the second epsilon)."""
    weight_decay: float = 0.0
    """Share of each weight that is taken off per update, times the learning rate."""

    def __post_init__(self) -> None:
        for name in ("decay", "eps", "min_scale"):
            _check_positive(name, getattr(self, name))
        if not self.clip >= 1:
            raise ValueError(f"clip must be at least 1, not {self.clip:g}")
        _check_decay(self.weight_decay)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a ``torch.optim.Adafactor`` that can skip a step."""
        return _SkippingAdafactor(
            trainable(model),
            lr=0.0,
            # torch's decay rate is 1 - t^beta2_decay.
            beta2_decay=-self.decay,
            eps=(math.sqrt(self.eps), self.min_scale),  # torch squares the first
            d=self.clip,
            weight_decay=self.weight_decay,
        )


@optimizers.register("adadelta")
@dataclass(frozen=True, kw_only=True)
class Adadelta(OptimizerConfig):
    """Adadelta (Zeiler 2012), with the values of Bahdanau et al. 2015; its own `lr` is 1."""

    rho: float = 0.95
    """Decay rate of the squared gradients and of the squared steps."""
    eps: float = 1e-6
    """Added to both before the root is taken."""

    def __post_init__(self) -> None:
        _check_share("rho", self.rho)
        _check_positive("eps", self.eps)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a ``torch.optim.Adadelta`` that can skip a step."""
        return _SkippingAdadelta(trainable(model), lr=0.0, rho=self.rho, eps=self.eps)


@optimizers.register("muon")
@dataclass(frozen=True, kw_only=True)
class Muon(Adam):
    """Muon (Jordan et al. 2024) for hidden matrices, and AdamW for all other weights.

    Muon replaces the momentum of a matrix by the nearest orthogonal matrix. The matrices belong to
    linear and recurrent layers, except the output layer and matrices tied to embeddings. Queries,
    keys and values of a layer have a matrix each, and so do its gates. All other weights have
    Adam's steps, with `betas` and `eps`. Steps of Muon are scaled to the usual size of Adam's (Liu
    et al. 2025), so one learning rate serves both.
    """

    can_be_sharded: ClassVar[bool] = False

    momentum: float = 0.95
    """Share of the running mean of gradients that is kept per update; Nesterov's form."""
    iterations: int = 5
    """Newton-Schulz iterations per update that make a matrix nearly orthogonal."""
    weight_decay: float = 0.1
    """Share of each hidden matrix that is taken off per update, times the learning rate. Norms,
    biases, embeddings and the output layer have no decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("momentum", self.momentum)
        _check_decay(self.weight_decay)
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, is {self.iterations}")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return Muon and a fused ``torch.optim.AdamW`` as one optimizer."""
        matrices = hidden_matrices(model)
        if not matrices:
            raise NmtError(
                "muon needs trainable matrices of linear or recurrent layers, without weight "
                "normalisation; the model has none: take train.optimizer=adamw"
            )
        return MuonWithAdamW(
            matrices,
            without(matrices, trainable(model)),
            momentum=self.momentum,
            iterations=self.iterations,
            weight_decay=self.weight_decay,
            betas=self.betas,
            eps=self.eps,
        )


@optimizers.register("schedule_free_adamw")
@dataclass(frozen=True, kw_only=True)
class ScheduleFree(Adam):
    """Schedule-free AdamW (Defazio et al. 2024): an average of the weights instead of a decay.

    Take `schedule` constant, with a warm-up: the number of updates need not be known. Validation
    and checkpoints, and therefore translations, use the average; `ema_decay` is refused.
    """

    can_be_sharded: ClassVar[bool] = False
    averages_weights: ClassVar[bool] = True

    betas: tuple[float, float] = (0.9, 0.999)
    """Share of the average in the weights that gradients are computed with, in place of momentum;
    decay rate of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Share of each hidden matrix, one of a linear or recurrent layer, that is taken off per
    update, times the learning rate. Norms, biases, embeddings and the output layer have no
    decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("the first of betas", self.betas[0])
        _check_decay(self.weight_decay)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer, with weight decay for hidden matrices alone."""
        matrices = hidden_matrices(model)
        return ScheduleFreeAdamW(
            matrices,
            without(matrices, trainable(model)),
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )


class _SkippingAdafactor(torch.optim.Adafactor):
    found_inf: Tensor | None = None

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step, or allocate the state alone if a gradient is not finite."""
        should_skip, self.found_inf = self.found_inf, None  # torch's step refuses `found_inf`
        if not should_skip:
            super().step(closure)  # type: ignore[no-untyped-call]
            return
        for group in self.param_groups:  # the memory trial needs the state
            self._init_group(group, [], [], [], [], [], [])


class _SkippingAdadelta(torch.optim.Adadelta):
    found_inf: Tensor | None = None

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step, or allocate the state alone if a gradient is not finite."""
        should_skip, self.found_inf = self.found_inf, None  # torch's step refuses `found_inf`
        if not should_skip:
            super().step(closure)
            return
        for group in self.param_groups:  # the memory trial needs the state
            self._init_group(group, [], [], [], [], [])

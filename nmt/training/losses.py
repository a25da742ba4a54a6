"""Losses, summed over a batch: the trainer divides once, by all target tokens of an update.

Those here are sums over target tokens; losses of whole translations are in ``sequence.py``.

Label smoothing has more than one definition in use (see the classes below); they differ in how
the smoothing mass is spread, and their values differ by a constant or slightly more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from nmt.models import Model
from nmt.recipe.registry import Registry
from nmt.runs import Run
from nmt.training.criterion import Criterion, TokenCriterion
from nmt.training.fused_loss import SlicedDivergence, SlicedLoss


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """What is minimised in training."""

    registry: ClassVar[Registry[Loss]]

    translates: ClassVar[bool] = False
    """Whether it translates with the model in training, which must be a trained one for it."""

    name: str = ""
    """Which loss."""

    def for_language(self, target_lang: str) -> Loss:
        """Return the loss with the settings of a target language wherever those are "auto"."""
        return self

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows a sentence takes in the model."""

    @abstractmethod
    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """The loss of this model.

        Args:
            model: to be trained.
            run: whose subwords make text of tokens.
            compile: whether the model's states are compiled.
        """


losses: Registry[Loss] = Registry("loss")
Loss.registry = losses


@dataclass(frozen=True, kw_only=True)
class TokenLoss(Loss):
    """A divergence of the model's distribution from a target distribution around the label."""

    passes: ClassVar[int] = 1
    """How often a batch goes through the model, each time with other dropout."""

    @property
    def rows(self) -> int:
        """The passes."""
        return self.passes

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Teacher forcing: the loss of every reference token, given those before it."""
        return TokenCriterion(model, self, self.passes, compile)

    @abstractmethod
    def masses(self, vocabulary: int) -> tuple[float, float, float]:
        """Target probability of the label, of every other token, and of padding."""

    def constant(self, vocabulary: int) -> float:
        """What is subtracted per token, in nats."""
        return 0.0

    def __call__(self, states: Tensor, output: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the negative log-likelihood, both summed over tokens, in nats.

        Args:
            states: [passes x P, D], the decoder's states where a token is to be predicted.
            output: the model's output layer [V, D].
            labels: [P] int64, the tokens to predict; no padding.

        Returns:
            Two float32 scalars; only the first has a gradient.
        """
        vocabulary = output.weight.shape[0]
        masses = self.masses(vocabulary)
        loss, nll = SlicedLoss.apply(  # type: ignore[no-untyped-call]
            states, output.weight, output.bias, labels, masses, torch.is_grad_enabled()
        )
        return loss - self.constant(vocabulary) * len(labels), nll


@losses.register("cross_entropy")
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(TokenLoss):
    """-log p(label)."""

    def masses(self, vocabulary: int) -> tuple[float, float, float]:
        """All on the label."""
        return 1.0, 0.0, 0.0


@losses.register("label_smoothed_cross_entropy")
@dataclass(frozen=True, kw_only=True)
class LabelSmoothedCrossEntropy(TokenLoss):
    """Cross-entropy against a label that is smoothed over the vocabulary."""

    smoothing: float = 0.1
    """Probability taken from the label (epsilon_ls), to be spread over other tokens."""
    definition: Literal["tensor2tensor", "fairseq", "uniform", "annotated"] = "tensor2tensor"
    """"tensor2tensor" (the paper's): over the V-1 others, minus the constant entropy, so that a
    perfect model scores 0; "fairseq" (since 2021): the same without the constant; "uniform"
    (Szegedy et al. 2015, torch): over all V; "annotated" (The Annotated Transformer): over the
    V-2 that are neither label nor padding."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing lies in [0, 1), not {self.smoothing}")

    def masses(self, vocabulary: int) -> tuple[float, float, float]:
        """By the definition."""
        eps = self.smoothing
        if self.definition == "uniform":
            return 1 - eps + eps / vocabulary, eps / vocabulary, eps / vocabulary
        if self.definition == "annotated":
            return 1 - eps, eps / (vocabulary - 2), 0.0
        return 1 - eps, eps / (vocabulary - 1), eps / (vocabulary - 1)

    def constant(self, vocabulary: int) -> float:
        """The entropy of the smoothed label, for tensor2tensor's definition."""
        if self.definition != "tensor2tensor" or self.smoothing == 0.0:
            return 0.0
        label, other, _ = self.masses(vocabulary)
        return -(label * math.log(label) + (vocabulary - 1) * other * math.log(other))


@losses.register("r_drop")
@dataclass(frozen=True, kw_only=True)
class RDrop(LabelSmoothedCrossEntropy):
    """R-Drop (Liang et al. 2021): two passes with different dropout are to predict the same.

    The sum of both passes' cross-entropies and `alpha` times the mean of the two divergences
    KL(p1 || p2) and KL(p2 || p1). Every update costs twice the time.
    """

    definition: Literal["tensor2tensor", "fairseq", "uniform", "annotated"] = "uniform"
    """As for label_smoothed_cross_entropy; the authors' is "uniform"."""
    alpha: float = 5.0
    """Weight of the divergence; the authors' for translation."""

    passes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0.0:
            raise ValueError(f"alpha must not be negative, is {self.alpha}")

    def __call__(self, states: Tensor, output: nn.Linear, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of both passes [2P, D], and the mean of their negative log-likelihoods."""
        loss, nll = super().__call__(states, output, labels.repeat(self.passes))
        divergence = SlicedDivergence.apply(  # type: ignore[no-untyped-call]
            states, output.weight, output.bias, torch.is_grad_enabled()
        )
        return loss + self.alpha * divergence, nll / self.passes

"""Token-level losses, summed over a batch; sequence-level losses are in ``sequence.py``.

The trainer divides the sum once, by all target tokens of an update.

Label smoothing has several definitions (see :class:`LabelSmoothedCrossEntropy`). They spread the
smoothing mass differently, and their values differ by a constant or slightly more.
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
from nmt.training.losses.criterion import Criterion, CutoffCriterion, TokenCriterion
from nmt.training.losses.output_layer import Shares, SlicedAgreement, SlicedLoss
from nmt.training.losses.slices import Masses, Targets


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A loss to minimise in training."""

    registry: ClassVar[Registry[Loss]]

    translates: ClassVar[bool] = False
    """Whether the loss samples translations, and so needs a trained model to start from."""

    name: str = ""
    """Name of the loss."""

    def for_language(self, target_lang: str) -> Loss:
        """Return the loss with "auto" settings resolved for a target language."""
        return self

    def pinned(self, trust_plugins: bool = False) -> Loss:
        """Return the loss with the checkpoints that its runs mean now, as a run stores it.

        Args:
            trust_plugins: whether plugins of these runs may be imported.

        Raises:
            NmtError: a run has no checkpoint, or plugins that are not trusted.
        """
        return self

    @property
    @abstractmethod
    def rows_per_sentence(self) -> int:
        """Return the number of rows that a sentence takes in the model's batch."""

    @abstractmethod
    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return the criterion that combines the model with this loss.

        Args:
            model: the model to train.
            run: its subwords decode tokens to text.
            compile: whether the model is compiled with ``torch.compile``, layer by layer.
        """


losses: Registry[Loss] = Registry("loss")
Loss.registry = losses


@dataclass(frozen=True, kw_only=True)
class TokenLoss(Loss):
    """A cross-entropy between a target distribution around the label and the model's."""

    passes: ClassVar[int] = 1
    """Forward passes per batch, each with its own dropout."""

    @property
    def rows_per_sentence(self) -> int:
        """Return the number of passes."""
        return self.passes

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return a criterion with teacher forcing: the loss of each reference token."""
        return TokenCriterion(model, self, self.passes, compile)

    @abstractmethod
    def masses(self, vocabulary: int) -> Masses:
        """Return the target distribution of a token, for a vocabulary of this size."""

    def constant(self, vocabulary: int) -> float:
        """Return the nats to subtract from the loss of each token."""
        return 0.0

    def __call__(
        self,
        decoder_output: Tensor,
        output: nn.Linear,
        labels: Tensor,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, both summed over tokens, in nats.

        Args:
            decoder_output: decoder output [passes x P, D] at the positions of the labels.
            output: the model's output layer [V, D].
            labels: [P] int64, the tokens to predict, without padding.
            weights: [P] float32, factors of the tokens' losses; None if all are 1.

        Returns:
            Two float32 scalars; only the first has a gradient and weights.
        """
        vocabulary = output.weight.shape[0]
        targets = Targets(labels, self.masses(vocabulary), weights)
        loss, nll = SlicedLoss.apply(  # type: ignore[no-untyped-call]
            decoder_output, output.weight, output.bias, targets, torch.is_grad_enabled()
        )
        total = len(labels) if weights is None else weights.sum()
        # tensor2tensor subtracts the label's entropy, so that a perfect model has loss 0; the
        # gradient is the same.
        return loss - self.constant(vocabulary) * total, nll


@losses.register("cross_entropy")
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(TokenLoss):
    """Cross-entropy: -log p(label)."""

    def masses(self, vocabulary: int) -> Masses:
        """Return masses with all probability on the label."""
        return Masses(label=1.0, other=0.0, pad=0.0)


@losses.register("label_smoothed_cross_entropy")
@dataclass(frozen=True, kw_only=True)
class LabelSmoothedCrossEntropy(TokenLoss):
    """Cross-entropy with label smoothing."""

    smoothing: float = 0.1
    """Probability taken from the label (epsilon_ls) and spread over other tokens."""
    definition: Literal["tensor2tensor", "fairseq", "uniform", "annotated"] = "tensor2tensor"
    """"tensor2tensor" (the paper's): over the V-1 others, minus the constant entropy, so that a
    perfect model scores 0; "fairseq" (since 2021): the same without the constant; "uniform"
    (Szegedy et al. 2015, torch): over all V; "annotated" (The Annotated Transformer): over the
    V-2 that are neither label nor padding."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing lies in [0, 1), not {self.smoothing}")

    def masses(self, vocabulary: int) -> Masses:
        """Return the masses of `definition`."""
        eps = self.smoothing
        # Section 5.4 says only epsilon = 0.1; implementations spread it in four ways.
        if self.definition == "uniform":
            return Masses(1 - eps + eps / vocabulary, eps / vocabulary, eps / vocabulary)
        if self.definition == "annotated":
            return Masses(1 - eps, eps / (vocabulary - 2), 0.0)
        return Masses(1 - eps, eps / (vocabulary - 1), eps / (vocabulary - 1))

    def constant(self, vocabulary: int) -> float:
        """Return the smoothed label's entropy for tensor2tensor's definition, else 0."""
        if self.definition != "tensor2tensor" or self.smoothing == 0.0:
            return 0.0
        label, other = self.masses(vocabulary)[:2]
        return -(label * math.log(label) + (vocabulary - 1) * other * math.log(other))


@dataclass(frozen=True, kw_only=True)
class AgreementLoss(LabelSmoothedCrossEntropy):
    """Label smoothing, and a divergence between the predictions of two passes."""

    alpha: float = 1.0
    """Weight of the divergence."""

    passes: ClassVar[int] = 2
    shares: ClassVar[tuple[Shares, Shares]]
    """What counts of each pass; its divergence is multiplied by `alpha`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0.0:
            raise ValueError(f"alpha must not be negative, is {self.alpha}")

    def __call__(
        self,
        decoder_output: Tensor,
        output: nn.Linear,
        labels: Tensor,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of both passes [2P, D], and their mean negative log-likelihood.

        A pass whose cross-entropy does not count adds no likelihood.
        """
        vocabulary = output.weight.shape[0]
        one, two = (Shares(ce, self.alpha * kl) for ce, kl in self.shares)
        targets = Targets(labels, self.masses(vocabulary), weights)
        layer = output.weight, output.bias
        loss, nll = SlicedAgreement.apply(  # type: ignore[no-untyped-call]
            decoder_output, *layer, targets, (one, two), torch.is_grad_enabled()
        )
        total = len(labels) if weights is None else weights.sum()
        counted = one.cross_entropy + two.cross_entropy
        mean = (one.cross_entropy * nll[0] + two.cross_entropy * nll[1]) / counted
        return loss - counted * self.constant(vocabulary) * total, mean


@losses.register("r_drop")
@dataclass(frozen=True, kw_only=True)
class RDrop(AgreementLoss):
    """R-Drop (Liang et al. 2021): two passes with different dropout should agree.

    The loss is the sum of both passes' cross-entropies, plus `alpha` times the mean of the two
    divergences KL(p1 || p2) and KL(p2 || p1). An update takes twice the time.
    """

    definition: Literal["tensor2tensor", "fairseq", "uniform", "annotated"] = "uniform"
    """Definition of label_smoothed_cross_entropy; the authors take "uniform"."""
    alpha: float = 5.0
    """Weight of the divergence; the authors' for translation."""

    shares: ClassVar[tuple[Shares, Shares]] = (Shares(1.0, 0.5), Shares(1.0, 0.5))


@losses.register("simcut")
@dataclass(frozen=True, kw_only=True)
class SimCut(AgreementLoss):
    """SimCut (Gao et al. 2022): predictions without some tokens' embeddings should be the same.

    A second pass sets the embeddings of random tokens to zero, of the source and of the target so
    far. The loss is the first pass's cross-entropy plus `alpha` times KL(p1 || p2). The gradient
    goes through both passes. An update takes twice the time.
    """

    alpha: float = 3.0
    """Weight of the divergence; the authors' for translation."""
    cutoff: float = 0.05
    """Probability with which a token's embedding is zero in the second pass; the authors'."""

    shares: ClassVar[tuple[Shares, Shares]] = (Shares(1.0, 1.0), Shares(0.0, 0.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.cutoff < 1.0:
            raise ValueError(f"cutoff lies in [0, 1), not {self.cutoff}")

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return a criterion with a pass without, and one with the cutoff."""
        return CutoffCriterion(model, self, self.cutoff, compile)

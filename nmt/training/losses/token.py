"""Losses: a recipe's :class:`Loss` makes the :class:`Criterion` that maps a batch to its loss.

This file holds losses of single tokens; losses of whole translations are in ``sequence.py``. Losses
are sums over a batch; the trainer divides them once, by all target tokens of an update.

Label smoothing is section 5.4 of *Attention Is All You Need*. The loss of a target token y is the
cross-entropy between a smoothed label q and the model's prediction p, over a vocabulary of V:

    loss = -sum_v q(v) log p(v),    q(y) = 1 - epsilon,    q(v) = epsilon / (V - 1) for v != y

- epsilon: the paper's epsilon_ls = 0.1, here `smoothing`.
- p: the softmax of the output layer, p(v) = exp(z_v) / sum_u exp(z_u) with its logits z.
- The gradient with respect to z_v is p(v) - q(v).

The paper does not say how epsilon is spread; :class:`LabelSmoothedCrossEntropy` has the four
definitions of q in use. Their losses differ by a constant or slightly more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from nmt.data.batches import Batch
from nmt.models import Model
from nmt.models.layers.basic import cutoff_of
from nmt.recipe.registry import Registry
from nmt.runs import Run
from nmt.training.losses.criterion import Criterion
from nmt.training.losses.output_layer import (
    Cost,
    TargetDistribution,
    agreement,
    cross_entropy,
    sliced_loss,
)


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
    counts: ClassVar[tuple[float, ...]] = (1.0,)
    """Factor of each pass's cross-entropy in the loss."""

    @property
    def rows_per_sentence(self) -> int:
        """Return the number of passes."""
        return self.passes

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return a criterion with teacher forcing: the loss of each reference token."""
        return TokenCriterion(model, self, compile)

    @abstractmethod
    def target_distribution(self, vocabulary: int) -> TargetDistribution:
        """Return the target distribution of a token, for a vocabulary of this size."""

    def constant(self, vocabulary: int) -> float:
        """Return the nats to subtract from the loss of each token."""
        return 0.0

    def cost(self, vocabulary: int) -> Cost:
        """Return the cost of a slice of tokens."""
        target = self.target_distribution(vocabulary)
        return Cost(partial(cross_entropy, target), in_place=True, uniform=target.other)

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
            Two float32 scalars; only the first has a gradient and weights. The second is a mean
            over the passes whose cross-entropy counts.
        """
        passes = decoder_output.view(self.passes, len(labels), output.in_features)
        loss, nll = sliced_loss(passes, output, labels, weights, self.cost(output.out_features))
        # The constant counts each token as much as its cost does.
        total = len(labels) if weights is None else weights.sum()
        counted = sum(self.counts)
        shares = [count / counted for count in self.counts]
        mean = sum(share * sum_of_pass for share, sum_of_pass in zip(shares, nll, strict=True))
        # tensor2tensor subtracts the label's entropy, so that a perfect model has loss 0; the
        # gradient is the same.
        return loss - counted * self.constant(output.out_features) * total, mean


@losses.register("cross_entropy")
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(TokenLoss):
    """Cross-entropy: -log p(label)."""

    def target_distribution(self, vocabulary: int) -> TargetDistribution:
        """Return a distribution with all probability on the label."""
        return TargetDistribution(label=1.0, other=0.0, pad=0.0)


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

    def target_distribution(self, vocabulary: int) -> TargetDistribution:
        """Return the smoothed label of `definition`."""
        eps = self.smoothing
        # Section 5.4 says only epsilon = 0.1; implementations spread it in four ways.
        if self.definition == "uniform":
            return TargetDistribution(
                1 - eps + eps / vocabulary, eps / vocabulary, eps / vocabulary
            )
        if self.definition == "annotated":
            return TargetDistribution(1 - eps, eps / (vocabulary - 2), 0.0)
        return TargetDistribution(1 - eps, eps / (vocabulary - 1), eps / (vocabulary - 1))

    def constant(self, vocabulary: int) -> float:
        """Return the smoothed label's entropy for tensor2tensor's definition, else 0."""
        if self.definition != "tensor2tensor" or self.smoothing == 0.0:
            return 0.0
        label, other = self.target_distribution(vocabulary)[:2]
        return -(label * math.log(label) + (vocabulary - 1) * other * math.log(other))


@dataclass(frozen=True, kw_only=True)
class AgreementLoss(LabelSmoothedCrossEntropy):
    """Label smoothing, and a divergence between the predictions of two passes."""

    alpha: float = 1.0
    """Weight of the divergence."""

    passes: ClassVar[int] = 2
    divergences: ClassVar[tuple[float, float]]
    """Factor of each pass's divergence from the other one, which is also multiplied by `alpha`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0.0:
            raise ValueError(f"alpha must not be negative, is {self.alpha}")

    def cost(self, vocabulary: int) -> Cost:
        """Return the cost of both passes."""
        factors = self.counts, [self.alpha * factor for factor in self.divergences]
        return Cost(partial(agreement, self.target_distribution(vocabulary), *factors))


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

    counts: ClassVar[tuple[float, ...]] = (1.0, 1.0)
    divergences: ClassVar[tuple[float, float]] = (0.5, 0.5)


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

    counts: ClassVar[tuple[float, ...]] = (1.0, 0.0)
    divergences: ClassVar[tuple[float, float]] = (1.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.cutoff < 1.0:
            raise ValueError(f"cutoff lies in [0, 1), not {self.cutoff}")

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return a criterion with a pass without, and one with the cutoff."""
        return CutoffCriterion(model, self, compile)


class TokenCriterion(Criterion):
    """Teacher forcing: the cost of each target token, given the reference tokens before it."""

    loss: TokenLoss

    def __init__(self, model: Model, loss: TokenLoss, compile: bool = False) -> None:
        """Combine a model and a token-level loss.

        Args:
            model: the model to train.
            loss: is called with the decoder output of all passes.
            compile: whether the model is compiled with ``torch.compile``, layer by layer.
        """
        super().__init__(model, compile)
        self.loss = loss

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return "loss" and "nll", summed over the batch's target tokens."""
        # Labels of one pass; the loss of several passes compares them itself.
        labels = batch.target_output, batch.weights
        loss, nll = self.loss(self.passes(batch), self.model.output, *labels)
        return {"loss": loss, "nll": nll}

    def passes(self, batch: Batch) -> Tensor:
        """Return the decoder output of all passes: [passes x P, D]."""
        # All passes in one batch: dropout draws different numbers for each copy.
        batch = batch.repeated(self.loss.passes)
        return self.decoder_output(batch.source, batch.target_input, batch.packing)


class CutoffCriterion(TokenCriterion):
    """Teacher forcing with two passes, of which the second cuts off the embeddings of tokens."""

    loss: SimCut

    def __init__(self, model: Model, loss: SimCut, compile: bool = False) -> None:
        """Combine a model and its loss.

        Raises:
            NmtError: the embeddings of the model cannot be cut off.
        """
        super().__init__(model, loss, compile)
        # Tried now, so that a model without token embeddings is refused before training begins.
        with cutoff_of(model, loss.cutoff):
            pass

    def passes(self, batch: Batch) -> Tensor:
        """Return the decoder output of both passes: [2P, D]."""
        # One pass after the other: the cutoff is a setting of the tables, for a whole pass.
        sentences = batch.source, batch.target_input, batch.packing
        whole = self.decoder_output(*sentences)
        with cutoff_of(self.model, self.loss.cutoff):
            return torch.cat((whole, self.decoder_output(*sentences)))

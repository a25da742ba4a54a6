"""A model and its loss as one module: what is minimised, and what data parallelism wraps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmt.data.batches import Batch
from nmt.models import Model

TokenCost = Callable[[Tensor, nn.Linear, Tensor], tuple[Tensor, Tensor]]


class Criterion(nn.Module, ABC):
    """What a batch costs."""

    sampling_seed = 0
    """Seed of what is drawn for a sentence; the trainer sets one for each update."""

    def __init__(self, model: Model, compile: bool = False) -> None:
        super().__init__()
        self.model = model
        self.states = torch.compile(model.states, dynamic=True) if compile else model.states

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Sums over a batch, float32 scalars of which only the loss has a gradient.

        Returns:
            "loss" with the model's own penalty, and "nll", the negative log-likelihood of the
            references in nats; where translations are sampled, also "reward": of each sentence the
            mean over its samples.
        """


class TokenCriterion(Criterion):
    """The cost of every target token, given those before it."""

    def __init__(
        self, model: Model, cost: TokenCost, passes: int = 1, compile: bool = False
    ) -> None:
        """An objective.

        Args:
            model: in whose parameters the gradient will be.
            cost: loss and likelihood of hidden states [passes x P, D], given the output layer and
                the labels [P]; see :class:`nmt.training.losses.TokenLoss`.
            passes: how often a batch goes through the model.
            compile: whether the model's states are compiled.
        """
        super().__init__(model, compile)
        self.cost = cost
        self.passes = passes

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss and the likelihood, summed over the batch's target tokens."""
        source, target = (
            rows.repeat(self.passes, 1) for rows in (batch.source, batch.target_input)
        )
        positions = batch.target_input.numel()
        target_positions = torch.cat(
            [batch.target_positions + n * positions for n in range(self.passes)]
        )
        states = self.states(source, target)  # [passes x B, T, D]
        states = states.flatten(0, 1).index_select(0, target_positions)  # [passes x P, D]
        labels = batch.target_output.flatten().index_select(0, batch.target_positions)  # [P]
        loss, nll = self.cost(states, self.model.output, labels)
        return {"loss": loss + len(labels) * self.model.auxiliary_loss(), "nll": nll}

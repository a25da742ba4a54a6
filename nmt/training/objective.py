"""A model and its loss as one module: what is minimised, and what data parallelism wraps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.data.batching import Batch
from nmt.models import Model
from nmt.training.losses import Loss


class Objective(nn.Module):
    """The loss of a batch."""

    def __init__(self, model: Model, loss: Loss, compile: bool = False) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.states = torch.compile(model.states, dynamic=True) if compile else model.states

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and negative log-likelihood, summed over the batch's target tokens, in nats.

        The loss includes the model's own penalty, the likelihood does not.
        """
        passes = self.loss.passes
        source, target = (rows.repeat(passes, 1) for rows in (batch.source, batch.target_input))
        positions = batch.target_input.numel()
        predicted = torch.cat([batch.predicted + n * positions for n in range(passes)])
        states = self.states(source, target)  # [passes x B, T, D]
        states = states.flatten(0, 1).index_select(0, predicted)  # [passes x P, D]
        labels = batch.target_output.flatten().index_select(0, batch.predicted)  # [P]
        loss, nll = self.loss(states, self.model.output, labels)
        return loss + len(labels) * self.model.penalty(), nll

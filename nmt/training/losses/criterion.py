"""Criteria: a model and its loss as one module, which data parallelism wraps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmt.data.batches import Batch
from nmt.data.packing import Packing
from nmt.models import Model
from nmt.models.kernels.packs import filled, is_compilable

GRAPHS = 64
"""Maximum number of compiled graphs: equal numbers of source and target tokens, for example, need a
graph of their own. A batch without a graph runs uncompiled."""


class Criterion(nn.Module, ABC):
    """A model with its loss: maps a batch to the loss to minimise and to other sums."""

    sampling_seed = 0
    """Seed of sampled translations; the trainer sets it for each update."""

    def __init__(self, model: Model, compile: bool = False) -> None:
        super().__init__()
        self.model = model
        # An attribute, so that guided alignment can put itself in between.
        self.decoder_output = _compiled(model) if compile else model.decode_packs

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return sums over a batch: float32 scalars, of which only "loss" has a gradient.

        Returns:
            "loss"; "nll", the negative log-likelihood of the
            references in nats; and if translations are sampled, "reward", the mean reward of each
            sentence's samples, summed over the sentences.
        """


def _compiled(model: Model) -> Callable[[Tensor, Tensor, Packing], Tensor]:
    """Return :meth:`Model.decode_packs`, compiled: without padding where the GPU has kernels.

    Layers are compiled one by one: those of a stack are the same code, which is compiled once.
    Other models are compiled as a whole.
    """
    # Beyond the limit torch runs the code uncompiled.
    torch._dynamo.config.recompile_limit = GRAPHS
    on_packs, on_padded = model.decode_packs, model.decode
    layers = list(model.residual_modules("layers"))
    for layer in layers:
        # Dynamic, because every micro-batch has another number of tokens.
        layer.compiled = torch.compile(layer.forward, dynamic=True)
    if not layers:
        on_packs = torch.compile(on_packs, dynamic=True)
        on_padded = torch.compile(on_padded, dynamic=True)

    def decode_packs(source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output [P, D] at the target's tokens."""
        # Packs can be compiled only where one fused kernel attends.
        if not (model.packs and is_compilable(model, source.device)):
            padded = on_padded(packing.source.pad(source), packing.target.pad(target))
            return packing.target.unpad(padded)
        tokens = len(target)
        source, target, packing = filled(source, target, packing)
        # Here, because torch cannot compile the numpy code that makes these tensors.
        packing.prepare()
        return on_packs(source, target, packing)[:tokens]

    return decode_packs

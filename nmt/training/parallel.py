"""One training over several processes: who holds which part of the weights, and who sums gradients.

Three ways behind one contract, for the trainer not to ask. In each of them the gradient that the
optimizer sees is the *mean* over the processes of what they computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from nmt.runtime.distributed import World

Sharding = Literal["none", "full"]

SHARDED_APART = 1 << 16
"""Weights of a module from which it is gathered when it computes, and not before."""


class SingleProcess:
    """One process: nothing to share."""

    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = criterion

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """The context of one micro-batch; gradients are summed over processes in the last one."""
        return nullcontext()

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Drops the gradients."""
        optimizer.zero_grad()

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a weight, or of a tensor shaped like it."""
        return tensor

    def shard(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """This process's part of a tensor that is shaped like `weight`, on its device."""
        return tensor.to(weight.device)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While it lasts, every process can use the model without the others."""
        yield


class DataParallel(SingleProcess):
    """Every process holds all weights (DistributedDataParallel)."""

    criterion: DistributedDataParallel

    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = DistributedDataParallel(criterion, gradient_as_bucket_view=True)

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """Without communication, but for the last micro-batch."""
        return nullcontext() if is_last else self.criterion.no_sync()

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Zeroes the gradients, which are views of the buffers that are communicated."""
        optimizer.zero_grad(set_to_none=False)


class FullyShardedDataParallel(SingleProcess):
    """Weights, gradients and the optimizer's state are each split over the processes.

    Large modules that every process calls equally often are gathered one by one when they compute
    (``fully_shard``, also known as FSDP2 and ZeRO-3); everything else, such as embeddings, for the
    time of a micro-batch.
    """

    def __init__(self, criterion: nn.Module, separate: Iterable[nn.Module], world: World) -> None:
        mesh = init_device_mesh(world.device.type, (world.size,))
        for module in list(separate):
            if sum(weight.numel() for weight in module.parameters()) >= SHARDED_APART:
                fully_shard(module, mesh=mesh)
        self.root = fully_shard(criterion, mesh=mesh)
        self.criterion = criterion

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """Without communication of gradients, but for the last micro-batch."""
        self.root.set_requires_gradient_sync(is_last)
        return nullcontext()

    def whole(self, tensor: Tensor) -> Tensor:
        """Gathered from all processes, which all must call."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def shard(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Split as the weight is; what is not shaped like it is kept whole."""
        if not isinstance(weight, DTensor) or tensor.shape != weight.shape:
            return tensor.to(weight.device)
        return distribute_tensor(tensor.to(weight.device), weight.device_mesh, weight.placements)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """With all weights on every process: translating takes each another number of steps."""
        parts = [module for module in self.criterion.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(part is not self.root)


Parallelism = SingleProcess | DataParallel | FullyShardedDataParallel


def parallelize(
    criterion: nn.Module, separate: Iterable[nn.Module], sharding: Sharding, world: World
) -> Parallelism:
    """The way of this training.

    Args:
        criterion: model and loss; sharding changes its weights in place.
        separate: modules that may be gathered one by one: :meth:`nmt.models.Model.fsdp_modules`.
        sharding: "full" splits weights over processes, where there are several.
        world: the processes.
    """
    if world.size == 1:
        return SingleProcess(criterion)
    return (
        FullyShardedDataParallel(criterion, separate, world)
        if sharding == "full"
        else DataParallel(criterion)
    )


def gather_tensors(
    parallelism: Parallelism, tensors: Mapping[str, Tensor], keep: bool
) -> dict[str, Tensor]:
    """All of every tensor, in the memory of the CPU; one at a time on the device.

    Args:
        parallelism: of these processes, which all must call it.
        tensors: by name.
        keep: whether this process wants them; else nothing is given.
    """
    gathered = {}
    for name, tensor in tensors.items():
        value = parallelism.whole(tensor)
        if keep:
            gathered[name] = value.cpu()
    return gathered

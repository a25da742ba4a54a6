"""Data-parallel training: one process, replicated weights, or fully sharded weights.

The three classes share one interface, so the trainer has no special cases. The optimizer always
sees the *mean* of the gradients over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from nmt.data.batches import Batch
from nmt.runtime.distributed import World

Sharding = Literal["none", "full"]

SHARDED_APART = 1 << 16
"""Number of weights from which a module is a unit of ``fully_shard`` of its own.

Weights of smaller modules are all-gathered together with the root module's weights.
"""


class SingleProcess:
    """A single process: no communication, no shards; the base class of the other two."""

    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = criterion

    def prepared(self, batch: Batch) -> Batch:
        """Return a micro-batch as :meth:`run` gives it to the criterion."""
        return batch

    def run(
        self, batch: Batch, factor: Tensor, computing: Callable[[], AbstractContextManager[object]]
    ) -> dict[str, Tensor]:
        """Run a micro-batch forward and backward, and return the outputs of the criterion.

        Gradients accumulate.

        Args:
            batch: the micro-batch, on the device.
            factor: scalar that the loss is multiplied by.
            computing: makes the context of the forward pass.
        """
        with computing():
            measured = self.criterion(batch)
        # Outside the context: torch advises against a backward pass under autocast.
        (measured["loss"] * factor).backward()
        return {name: value.detach() for name, value in measured.items()}

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """Return the context of one micro-batch of an update.

        Args:
            is_last: whether the micro-batch is the update's last one. Only the last backward pass
                averages the accumulated gradients over processes.
        """
        return nullcontext()

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Set all gradients to None."""
        optimizer.zero_grad()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Return the full tensor of a sharded one, on every process.

        The inverse of :meth:`shard`. A collective operation: all processes must call it.

        Args:
            tensor: a weight, a gradient, or an optimizer's tensor.
        """
        return tensor

    def shard(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return this process's shard of a full tensor, on the device of `weight`.

        Args:
            tensor: the full tensor, such as a weight of a checkpoint, the same on all processes.
            weight: the model's parameter whose sharding the result takes.
        """
        return tensor.to(weight.device)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let each process run the model without the other processes, within the context."""
        yield


class DataParallel(SingleProcess):
    """Replicated weights: torch's ``DistributedDataParallel`` (DDP).

    Each process holds all weights and the whole state of the optimizer. The backward pass of an
    update's last micro-batch all-reduces the gradients.
    """

    criterion: DistributedDataParallel

    def __init__(self, criterion: nn.Module) -> None:
        # Gradients that are views of the buckets need no second copy in memory.
        self.criterion = DistributedDataParallel(criterion, gradient_as_bucket_view=True)

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """Return DDP's ``no_sync``, or for the last micro-batch a context that does nothing."""
        # Gradients are exchanged once for each update, not for each micro-batch.
        return nullcontext() if is_last else self.criterion.no_sync()

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the gradients in place: they are views of DDP's communication buckets."""
        optimizer.zero_grad(set_to_none=False)


class FullyShardedDataParallel(SingleProcess):
    """Sharded weights, gradients and optimizer state: torch's ``fully_shard`` (FSDP2, ZeRO-3).

    Each process holds one shard of each parameter, as a ``DTensor``. A large module of `separate`
    is a unit of its own: its weights are all-gathered just before it computes and resharded
    afterwards. All other weights, such as embeddings, belong to the root module, which is gathered
    for the time of a micro-batch.
    """

    def __init__(self, criterion: nn.Module, separate: Iterable[nn.Module], world: World) -> None:
        mesh = init_device_mesh(world.device.type, (world.size,))
        for module in list(separate):
            # Small modules are gathered with the root: each gathering costs a message.
            if sum(weight.numel() for weight in module.parameters()) >= SHARDED_APART:
                fully_shard(module, mesh=mesh)
        # Last, because the root takes the weights that no module before it has taken.
        self.root = fully_shard(criterion, mesh=mesh)
        self.criterion = criterion

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        """Reduce-scatter the gradients in the last micro-batch only; before it, accumulate them."""
        # As with DDP: one exchange for each update, not for each micro-batch.
        self.root.set_requires_gradient_sync(is_last)
        return nullcontext()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Return ``DTensor.full_tensor()``: all-gathered from the shards of all processes."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def shard(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Distribute a tensor over the weight's device mesh, with the weight's placements.

        A tensor of another shape, such as Adam's ``step``, is replicated instead.
        """
        if not isinstance(weight, DTensor) or tensor.shape != weight.shape:
            return tensor.to(weight.device)
        return distribute_tensor(tensor.to(weight.device), weight.device_mesh, weight.placements)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep all weights unsharded on each process within the context.

        Search takes a different number of steps on each process, so weights cannot be all-gathered
        in between.
        """
        parts = [module for module in self.criterion.modules() if isinstance(module, FSDPModule)]
        for part in parts:
            # Searches of different processes take different numbers of steps, so no step may
            # gather.
            part.set_reshard_after_forward(False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                # torch's default: the backward pass needs the root's weights first, so they stay.
                part.set_reshard_after_forward(part is not self.root)


Parallelism = SingleProcess | DataParallel | FullyShardedDataParallel


def parallelize(
    criterion: nn.Module, separate: Iterable[nn.Module], sharding: Sharding, world: World
) -> Parallelism:
    """Return the parallelism of a training run.

    Args:
        criterion: model and loss; sharding replaces its weights in place.
        separate: modules that may be all-gathered one by one, from
            :meth:`nmt.models.Model.fsdp_modules`.
        sharding: "full" shards the weights over the processes if there are several; "none"
            replicates the weights.
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
    """Return the full tensors by name, in CPU memory.

    A collective operation: all processes must call it. The device holds one full tensor at a time.

    Args:
        parallelism: the parallelism that sharded the tensors.
        tensors: the (possibly sharded) tensors by name.
        keep: whether this process keeps the full tensors; otherwise the result is empty.
    """
    gathered = {}
    for name, tensor in tensors.items():
        # Every process takes part in gathering, one tensor at a time, so no GPU holds two models.
        value = parallelism.full_tensor(tensor)
        if keep:
            gathered[name] = value.cpu()
    return gathered

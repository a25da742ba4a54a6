"""Micro-batches as CUDA graphs: the host launches one graph, not a thousand kernels.

A GPU computes an update of a base model in less time than a host needs to launch its kernels. A
graph holds for fixed addresses and sizes, so a micro-batch is padded to one of few sizes and copied
to where the graph reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.batches import Batch
from nmt.data.packing import GRAIN, Packing
from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.kernels.packs import is_compilable
from nmt.models.transformer.model import Transformer
from nmt.models.transformer.multi_head import SelfAttention
from nmt.runtime.distributed import World
from nmt.runtime.own_kernels import has_own_kernels
from nmt.training.losses.token import TokenCriterion
from nmt.training.parallel.processes import SingleProcess

TOKENS = 8 * GRAIN
"""Each side gets padding up to a multiple of this number of tokens."""

SENTENCES = 128
"""A batch is filled up to a multiple of this number of sentences; most added sentences are
empty."""

MAX_GRAPHS = 32
"""Largest number of recorded sizes; micro-batches of other sizes are launched kernel by kernel."""


class Recording(NamedTuple):
    """A CUDA graph, and the tensors that it reads and writes."""

    batch: Batch
    factor: Tensor
    replay: Callable[[], None]
    measured: dict[str, Tensor]


class RecordedProcess(SingleProcess):
    """A single process that records a micro-batch of each size, and replays the recordings."""

    def __init__(self, criterion: nn.Module, weights: Iterable[nn.Parameter]) -> None:
        """Prepare the first micro-batch.

        Args:
            criterion: the model with its loss; see :func:`check_recordable`.
            weights: the weights that are trained; their gradients stay where they are in memory.
        """
        super().__init__(criterion)
        # Recordings write to these addresses, so a gradient is zeroed and never replaced.
        self._gradients = {weight: torch.zeros_like(weight) for weight in weights}
        self._put_gradients_back()
        self._longest = 2 * TOKENS  # more than the padding of a batch
        self._sizes: set[tuple[int, ...]] = set()
        self._recordings: dict[tuple[int, ...], Recording] = {}
        self._pool: object = None

    def forget(self) -> None:
        """Drop all recordings; sizes are recorded again."""
        self._sizes.clear()
        self._recordings.clear()
        self._pool = None  # torch refuses a pool whose recordings are all gone

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Zero the gradients in place."""
        # One launch for all weights.
        torch._foreach_zero_([*self._gradients.values()])
        self._put_gradients_back()

    def prepared(self, batch: Batch) -> Batch:
        """Return a micro-batch that is filled up, with the tensors that attention reads."""
        batch = filled_up(batch)
        self._allow(max(batch.packing.source.longest, batch.packing.target.longest))
        batch.packing.raise_longest(self._longest)
        batch.packing.prepare()
        return batch

    def run(
        self, batch: Batch, factor: Tensor, computing: Callable[[], AbstractContextManager[object]]
    ) -> dict[str, Tensor]:
        """Run a micro-batch forward and backward; see :meth:`SingleProcess.run`.

        The first micro-batch of a size runs as usual, which loads the kernels that it needs. The
        second one is recorded.
        """
        # A clone: the recording keeps this tensor, and later replays overwrite it.
        batch, factor = self.prepared(batch), factor.clone()
        tensors = _tensors(batch)
        size = tuple(len(tensor) for tensor in tensors)
        if size not in self._recordings:
            run = partial(self._accumulate, batch, factor, computing)
            # Every recording keeps memory of its own, so rare sizes are launched kernel by kernel.
            if size not in self._sizes or len(self._recordings) == MAX_GRAPHS:
                self._sizes.add(size)
                return run()
            self._pool = self._pool or graph_pool()
            self._recordings[size] = Recording(batch, factor, *record(run, self._pool))
        recording = self._recordings[size]
        # A recording reads fixed addresses, so the batch goes to where the first one was.
        torch._foreach_copy_(_tensors(recording.batch), tensors)
        recording.factor.copy_(factor)
        recording.replay()
        # The next replay overwrites the originals.
        return {name: value.clone() for name, value in recording.measured.items()}

    def _accumulate(
        self, batch: Batch, factor: Tensor, computing: Callable[[], AbstractContextManager[object]]
    ) -> dict[str, Tensor]:
        """Run a micro-batch kernel by kernel; all gradients are added at once."""
        for weight in self._gradients:
            # Autograd then writes gradients instead of adding to each, and one launch adds them
            # all.
            weight.grad = None
        measured = super().run(batch, factor, computing)
        pairs = ((sum, weight.grad) for weight, sum in self._gradients.items())
        added = [(sum, gradient) for sum, gradient in pairs if gradient is not None]
        torch._foreach_add_([sum for sum, _ in added], [gradient for _, gradient in added])
        self._put_gradients_back()
        return measured

    def _put_gradients_back(self) -> None:
        for weight, gradient in self._gradients.items():
            weight.grad = gradient

    def _allow(self, longest: int) -> None:
        """Forget all recordings if a sentence is longer than they allow."""
        if longest > self._longest:
            # Twice the length, so that slowly growing sentences do not discard the recordings each
            # time.
            self._longest = 2 * longest
            self.forget()


def graph_pool() -> object:
    """Return memory that all recordings share, as they run one after another."""
    return torch.cuda.graph_pool_handle()


def record(
    run: Callable[[], dict[str, Tensor]], pool: object
) -> tuple[Callable[[], None], dict[str, Tensor]]:
    """Record the kernels that a function launches, without running them.

    Args:
        run: the function; each replay overwrites the tensors that it returned.
        pool: memory for all its tensors.

    Returns:
        The function that runs the recording, and what `run` returned.
    """
    graph = torch.cuda.CUDAGraph()
    # The loader's thread may use the GPU in the meantime.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # type: ignore[arg-type]
        measured = run()
    return graph.replay, measured


def filled_up(batch: Batch) -> Batch:
    """Return a batch with one more pair of padding, and empty pairs, of one of few sizes.

    The labels of padding are PAD, and have no weight in the loss.
    """
    sides = batch.packing.source, batch.packing.target
    # From 1 to TOKENS, never 0, so that the added sentence has a token.
    fillings = [TOKENS - int(side.lengths.sum()) % TOKENS for side in sides]
    # One of the added sentences holds the padding of both sides; the rest is empty.
    empty = np.zeros(-(len(sides[0].lengths) + 1) % SENTENCES, np.int64)
    lengths = (
        np.concatenate((side.lengths, [filling], empty))
        for side, filling in zip(sides, fillings, strict=True)
    )
    device, labels = batch.source.device, batch.target_output
    # Always with weights: a recording cannot choose between two losses.
    weights = torch.ones(len(labels), device=device) if batch.weights is None else batch.weights
    of_source, of_target = fillings
    return replace(
        batch,
        source=F.pad(batch.source, (0, of_source)),
        target_input=F.pad(batch.target_input, (0, of_target)),
        target_output=F.pad(labels, (0, of_target)),
        weights=F.pad(weights, (0, of_target)),
        packing=Packing.from_lengths(*lengths).to(device),
    )


def _tensors(batch: Batch) -> list[Tensor]:
    """Return all tensors of a batch that a model or its loss reads."""
    assert batch.weights is not None
    of_tokens = [batch.source, batch.target_input, batch.target_output, batch.weights]
    sides = batch.packing.source, batch.packing.target
    return of_tokens + [
        tensor for side in sides for tensor in (side.positions, side.ends, side.sentence_of_tokens)
    ]


def check_recordable(criterion: nn.Module, model: Model, world: World) -> None:
    """Raise an NmtError if micro-batches cannot be recorded, in the context of the precision."""
    remedy = "set train.cuda_graphs to false"
    if world.device.type != "cuda" or world.size > 1:
        raise NmtError(f"train.cuda_graphs is for one process with a GPU; {remedy}")
    if type(criterion) is not TokenCriterion or criterion.loss.passes > 1:
        raise NmtError(f"train.cuda_graphs is for losses of one pass over the reference; {remedy}")
    is_plain = isinstance(model, Transformer) and all(
        isinstance(layer.attention, SelfAttention) for layer in (*model.encoder, *model.decoder)
    )
    can_record = is_compilable(model, world.device) and has_own_kernels()
    if not is_plain or not can_record:
        raise NmtError(
            "train.cuda_graphs is for Transformers with plain attention, in bf16 or fp16, on a "
            f"GPU where Triton works; {remedy}"
        )

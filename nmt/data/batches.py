"""Batches: sentence pairs as tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.manifest import Side
from nmt.data.packing import Packing
from nmt.data.padding import target_input
from nmt.data.sampler import Indices
from nmt.data.vocabulary import EOS, PAD


class TokenLinks(NamedTuple):
    """Word alignments of a batch, as links between its tokens."""

    tokens: Tensor
    """[2, n] int64, indices among the source's tokens [P'] and among the target's [P]."""
    shares: Tensor
    """[n] float32, the share of each link in its target token; the shares of a token sum to 1."""


Link = Callable[[Indices, NDArray[np.int64], NDArray[np.int64]], TokenLinks]
"""Returns the links of the pairs at indices [B], given their padded sources and targets."""


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as tokens one after another, without padding."""

    source: Tensor
    """[P'] int64, each sentence ends with EOS."""
    target_input: Tensor
    """[P] int64, each sentence begins with BOS."""
    target_output: Tensor
    """[P] int64, the tokens to predict: each sentence ends with EOS."""
    packing: Packing
    """Lengths of the sentences, from which padded tensors can be made."""
    links: TokenLinks | None = None
    """Word alignments, if there are any; a repeated batch has links for its first copy only."""
    weights: Tensor | None = None
    """[P] float32, weight of each target token in the loss, unless all weights are 1. In a repeated
    batch, the weights belong to the first copy."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; the copy is asynchronous if the batch is pinned."""
        if device.type == "cpu":
            return self
        moved = self._map(
            lambda tensor: tensor.to(device, non_blocking=True), self.packing.to(device)
        )
        return moved._with_others(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies in the background."""
        return self._map(Tensor.pin_memory, self.packing)._with_others(Tensor.pin_memory)

    def repeated(self, count: int) -> Batch:
        """Return a batch of all sentences, then all again, `count` times."""
        if count == 1:
            return self
        sides = (self.packing.source, self.packing.target)
        # Several passes as one batch: one launch of each kernel, with dropout drawn for each row.
        packing = Packing.from_lengths(*(np.tile(side.lengths, count) for side in sides)).to(
            self.source.device
        )
        return self._map(lambda tensor: tensor.repeat(count), packing)

    def _map(self, change: Callable[[Tensor], Tensor], packing: Packing) -> Batch:
        tensors = (self.source, self.target_input, self.target_output)
        source, target_input, target_output = map(change, tensors)
        return Batch(source, target_input, target_output, packing, self.links, self.weights)

    def _with_others(self, change: Callable[[Tensor], Tensor]) -> Batch:
        links = self.links and TokenLinks(*map(change, self.links))
        weights = None if self.weights is None else change(self.weights)
        return replace(self, links=links, weights=weights)

    @property
    def num_positions(self) -> int:
        """Number of positions of both sides, if sentences are padded."""
        sides = (self.packing.source, self.packing.target)
        return sum(len(side.lengths) * side.longest for side in sides)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of both sides."""
        return len(self.source) + len(self.target_output)

    @property
    def num_sentences(self) -> int:
        """Number of pairs; 0 for an empty batch, although it has a source of one token."""
        return int(np.count_nonzero(self.packing.target.lengths))


class PaddedSplit(Protocol):
    """Source of padded sentences: a :class:`Split`, or a split with sampled subwords."""

    def padded(self, side: Side, indices: Indices) -> NDArray[np.int64]:
        """Return the sentences at `indices` [B] as rows [B, L], padded on the right with PAD."""


def make_batch(
    split: PaddedSplit,
    indices: Indices,
    link: Link | None = None,
    weights: NDArray[np.float32] | None = None,
) -> Batch:
    """Return the batch of these sentences; without sentences, an empty batch of zero loss.

    A process without sentences in an update runs the empty batch, because every process must take
    part in the collective operations. With `link`, the batch has word alignments. `weights` are the
    weights of all pairs of the dataset: each token gets the weight of its pair, unless all pairs of
    the batch have weight 1.
    """
    if len(indices) == 0:
        # One source token: a softmax over no keys would be NaN.
        return batch_of(torch.tensor([[EOS]]), torch.tensor([[PAD]]))
    source, target = split.padded("source", indices), split.padded("target", indices)
    batch = batch_of(torch.from_numpy(source), torch.from_numpy(target))
    if link:
        batch = replace(batch, links=link(indices, source, target))
    # Without weights the loss is cheaper to compute.
    if weights is None or (weights[indices] == 1).all():
        return batch
    of_tokens = np.repeat(weights[indices], batch.packing.target.lengths)
    return replace(batch, weights=torch.from_numpy(of_tokens))


def batch_of(source: Tensor, target: Tensor) -> Batch:
    """Return the batch of padded sources [B, S] and targets [B, T], both int64 on a CPU."""
    source_lengths, target_lengths = ((side != PAD).sum(1).numpy() for side in (source, target))
    read = target_input(target)
    return Batch(
        source[source != PAD],
        read[target != PAD],
        target[target != PAD],
        Packing.from_lengths(source_lengths, target_lengths),
    )

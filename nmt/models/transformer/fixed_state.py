"""Decoder state of fixed size: a step reads and writes the same places in memory each time.

A step that does so can be recorded as a CUDA graph (:mod:`nmt.inference.fast.recorded_search`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.models.layers.cache import (
    BeamAncestry,
    DecodingStep,
    KeyValueCache,
    Memory,
    SharedCache,
)
from nmt.models.transformer.layers import TransformerState


class FixedAncestry(BeamAncestry):
    """Ancestors among the entries of a fixed number of steps."""

    def __init__(self, shape: tuple[int, int], most_steps: int, device: torch.device) -> None:
        """Begin before the first step.

        Args:
            shape: (B, K), the sentences and the rows of each.
            most_steps: T, the largest number of steps.
            device: of the tensors.
        """
        super().__init__()
        self.most_steps = most_steps
        self.newest = torch.full((1,), -1, device=device)
        """[1] int64, the position of the newest step."""
        rows = shape[1]
        self.entries = torch.zeros(*shape, most_steps * rows, dtype=torch.bool, device=device)
        """[B, K, T K] bool: whether a row descends from an entry."""
        self._rows = torch.arange(rows, device=device)
        self._own = torch.eye(rows, dtype=torch.bool, device=device).expand(shape[0], -1, -1)

    @property
    def places(self) -> Tensor:
        """[K], the entries of the newest step."""
        return self.newest * len(self._rows) + self._rows

    @property
    def has_branched(self) -> bool:
        """Return True: all rows are there from the beginning."""
        return True

    def step(self, cache: KeyValueCache | None = None) -> DecodingStep:
        """Return the newest step, whose position is known to the device alone."""
        return FixedStep(self, cache)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of scores [B, 1, K, T K]: 0 at a row's ancestors, else -infinity."""
        if self._bias is None:
            zeros = torch.zeros(self.entries.shape, dtype=dtype, device=self.entries.device)
            self._bias = zeros.masked_fill_(~self.entries, float("-inf"))[:, None]
        return self._bias

    def grow(self, tokens: Tensor) -> None:
        """Let each row descend from its entry of the next step."""
        self.newest += 1
        self.entries.index_copy_(2, self.places, self._own)
        self._bias = None

    def select(self, rows: Tensor) -> None:
        """Reorder rows within their sentences."""
        self.entries.copy_(self.entries.flatten(0, 1)[rows])


class FixedStep(DecodingStep):
    """The newest tokens of all rows, at a position that the host does not know."""

    ancestry: FixedAncestry

    def __init__(self, ancestry: FixedAncestry, cache: KeyValueCache | None) -> None:
        super().__init__(-1, cache, ancestry)

    def positions(self, x: Tensor) -> Tensor:
        """Return the position [1]."""
        return self.ancestry.newest

    def encodings(self, encode: nn.Module, tokens: Tensor) -> Tensor:
        """Return the encoding [1, D], or a scalar zero if there are none."""
        every: Tensor = encode(0, self.ancestry.most_steps, tokens.device)
        return every if every.dim() == 0 else every.index_select(0, self.ancestry.newest)


class FixedCache(SharedCache):
    """Keys and values of all steps that there can be; later ones are zeros."""

    def __init__(self, ancestry: FixedAncestry) -> None:
        super().__init__()
        self.ancestry = ancestry

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, G, K, C] of the newest step; returns those of all steps."""
        if self._keys is None or self._values is None:
            entries = self.ancestry.entries.shape[-1]
            # Zeros: what no row may see has the weight 0, but 0 times NaN would be NaN.
            self._keys, self._values = (
                x.new_zeros(*x.shape[:2], entries, x.shape[3]) for x in (keys, values)
            )
        for stored, new in ((self._keys, keys), (self._values, values)):
            stored.index_copy_(2, self.ancestry.places, new)
        return self._keys, self._values

    def tensors(self) -> list[Tensor]:
        """Return keys and values [B, G, T K, C], once there are any."""
        return [x for x in (self._keys, self._values) if x is not None]


class FixedState(TransformerState):
    """State of B sentences with K rows each, of which none comes or goes."""

    ancestry: FixedAncestry

    def __init__(self, memory: Memory, rows: int, most_steps: int, layers: int) -> None:
        """Make room for the memory of a batch and for the past of its rows.

        Args:
            memory: of sources of the largest length.
            rows: K.
            most_steps: largest number of steps.
            layers: number of decoder layers.
        """
        keys = memory.layers[0][0]
        assert memory.mask is not None
        # As a bias: attention would make one of a mask in each layer.
        bias = torch.zeros(memory.mask.shape, dtype=keys.dtype, device=keys.device)
        self.memory = Memory(
            [tuple(x.contiguous() for x in layer) for layer in memory.layers], bias
        )
        self.ancestry = FixedAncestry((len(memory), rows), most_steps, keys.device)
        self.caches: list[FixedCache] = [FixedCache(self.ancestry) for _ in range(layers)]
        self.rows = rows

    def select(self, rows: Tensor) -> None:
        """Reorder rows within their sentences; see :class:`nmt.models.base.State`."""
        self.ancestry.select(rows)

    def restart(self, memory: Memory) -> None:
        """Begin before the first step, with the memory of other sources."""
        assert self.memory.mask is not None
        assert memory.mask is not None
        for stored, new in zip(self.memory.layers, memory.layers, strict=True):
            for part, x in zip(stored, new, strict=True):
                part.copy_(x)
        self.memory.mask.zero_().masked_fill_(~memory.mask, float("-inf"))
        self.ancestry.newest.fill_(-1)
        self.ancestry.entries.zero_()

    def resume(self, state: FixedState, sentences: Tensor) -> None:
        """Resume at the step of a state with as many rows of a sentence and at most as many steps.

        Args:
            state: another state.
            sentences: [B] int64, its sentence in each place of this one.
        """
        self.ancestry.entries.zero_()
        for stored, x in zip(self._tensors(), state._tensors(), strict=True):
            part = x.index_select(0, sentences)
            # The past of fewer steps is the beginning of the room for more.
            stored[tuple(map(slice, part.shape))] = part
        self.ancestry.newest.copy_(state.ancestry.newest)

    def _tensors(self) -> list[Tensor]:
        assert self.memory.mask is not None
        of_sources = [x for layer in self.memory.layers for x in layer]
        past = [x for cache in self.caches for x in cache.tensors()]
        return [self.memory.mask, *of_sources, *past, self.ancestry.entries]

"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), of padded sentences and of packs.

Attention has two steps: *project* computes queries, keys and values; *attend* computes weighted
means of values. A decoder's cache sits between the two steps, and neither depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.data.packing import Pack, Packing
from nmt.models.attention import Attend, Heads, attention_weights, split_heads
from nmt.models.initialization import glorot
from nmt.models.packed_attention import link_weights, mix_packs
from nmt.models.state import KeyValueCache, OrderedCache, SharedCache, TokenMixer


class SelfAttention(TokenMixer):
    """Self-attention: queries, keys and values of the same input, from one fused projection."""

    def __init__(
        self,
        heads: Heads,
        attention_fn: nn.Module | None = None,
        rotation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.counts = [heads.count, heads.keys_and_values, heads.keys_and_values]
        widths = [heads.key_width, heads.key_width, heads.value_width]
        self.sizes = [count * width for count, width in zip(self.counts, widths, strict=True)]
        # Glorot over the fused [D, 3D] matrix, as tensor2tensor did in 2017. fairseq gets the same
        # bound with a gain of 1 / sqrt(2) on three separate matrices.
        self.project_in = glorot(nn.Linear(heads.width, sum(self.sizes), bias=heads.bias))
        self.attend = Attend(heads, attention_fn)
        self.rotation = rotation

    def new_cache(self) -> KeyValueCache:
        """Return a cache that keeps the order of the keys, if the result may depend on it."""
        return SharedCache() if self.attend.is_plain else OrderedCache()

    def project(self, x: Tensor, position: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, T, C] of the input [B, T, D].

        Args:
            x: the input.
            position: of all tokens; None if they are at 0 to T - 1.
        """
        projected = self.project_in(x)
        if self.rotation is not None:
            begin, end = (0, x.shape[1]) if position is None else (position, position + 1)
            projected = self._rotated(projected, torch.arange(begin, end, device=x.device))
        parts = projected.split_with_sizes(self.sizes, dim=-1)
        queries, keys, values = map(split_heads, parts, self.counts)
        return queries, keys, values

    def project_pack(self, x: Tensor, pack: Pack) -> Tensor:
        """Return queries, keys and values side by side [P, W] of the input [P, D]."""
        projected: Tensor = self.project_in(x)
        return projected if self.rotation is None else self._rotated(projected, pack.positions)

    def _rotated(self, projected: Tensor, positions: Tensor) -> Tensor:
        """Return `projected` [..., T, W] with its queries and keys rotated by `positions`."""
        assert self.rotation is not None
        turning, values = projected.split_with_sizes([sum(self.sizes[:2]), self.sizes[2]], -1)
        heads = turning.view(*turning.shape[:-1], -1, self.attend.widths[0])
        return torch.cat((self.rotation(heads, positions).flatten(-2), values), -1)

    def forward(
        self, x: Tensor, sentences: Tensor | Pack | None = None, causal: bool = False
    ) -> Tensor:
        """Attend within each sentence; see :meth:`TokenMixer.forward`."""
        if isinstance(sentences, Pack):
            packs, projected = (sentences, sentences), (self.project_pack(x, sentences),)
            mixed = mix_packs(self.attend, projected, self.sizes, self.counts, packs, causal)
            output: Tensor = self.attend.output(mixed)
        else:
            output = self.attend(*self.project(x), sentences, causal)
        return output


class CrossAttention(nn.Module):
    """Cross-attention: queries from one sequence, keys and values from another."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads, self.key_width = heads.count, heads.key_width
        self.memory_heads = heads.keys_and_values
        self.sizes = [self.memory_heads * width for width in (heads.key_width, heads.value_width)]
        queries = heads.count * heads.key_width
        self.project_query = glorot(nn.Linear(heads.width, queries, bias=heads.bias))
        self.project_memory = glorot(nn.Linear(heads.width, sum(self.sizes), bias=heads.bias))
        self.attend = Attend(heads)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, H, S, C] of the encoder output [B, S, D]."""
        keys, values = (
            split_heads(part, self.memory_heads)
            for part in self.project_memory(memory).split_with_sizes(self.sizes, dim=-1)
        )
        return keys, values

    def forward(
        self, x: Tensor, memory: Sequence[Tensor], sentences: Tensor | Packing | None
    ) -> Tensor:
        """Attend from `x` to the projected memory; returns the shape of `x`.

        Args:
            x: padded sentences [B, Q, D], or a pack [P, D].
            memory: keys [B, H, S, C] and values [B, H, S, C'], from :meth:`project`; of a pack,
                both side by side [P', H*C + H*C'], from ``project_memory``.
            sentences: the mask of the memory [B, 1, 1, S] bool, True at tokens; None where nothing
                is padding; or the packing.
        """
        queries = self.project_query(x)
        if isinstance(sentences, Packing):
            sizes, counts = [queries.shape[1], *self.sizes], [self.heads, *[self.memory_heads] * 2]
            packs = sentences.target, sentences.source
            mixed = mix_packs(self.attend, (queries, *memory), sizes, counts, packs)
            output: Tensor = self.attend.output(mixed)
        else:
            output = self.attend(split_heads(queries, self.heads), *memory, sentences)
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor, head: int | None = None) -> Tensor:
        """Return the attention weights [B, Q, S] of `x` [B, Q, D]: of a head, or the mean."""
        queries = split_heads(self.project_query(x), self.heads)
        keys = keys.repeat_interleave(self.heads // self.memory_heads, dim=1)
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
        weights = attention_weights(scores, mask, False, 0.0)
        return weights.mean(1) if head is None else weights[:, head - 1]

    @contextmanager
    def recorded(self) -> Iterator[dict[nn.Module, Tensor]]:
        """Yield a mapping that receives the output of each projection within the context."""
        outputs: dict[nn.Module, Tensor] = {}
        parts = (self.project_query, self.project_memory)
        hooks = [
            part.register_forward_hook(lambda part, _, output: outputs.update({part: output}))
            for part in parts
        ]
        try:
            yield outputs
        finally:
            for hook in hooks:
                hook.remove()

    def link_weights(
        self,
        outputs: dict[nn.Module, Tensor],
        packing: Packing,
        links: Tensor,
        head: int | None = None,
    ) -> Tensor:
        """Return attention weights [n] of a pack: of a head, or the mean; no dropout.

        If the layer was left out, there are none: [0].

        Args:
            outputs: from :meth:`recorded`; without queries if the layer was left out.
            packing: the lengths of the sentences.
            links: [2, n] int64, the tokens; see :func:`~nmt.models.packed_attention.link_weights`.
            head: from 1; None for the mean of all heads.
        """
        if self.project_query not in outputs:
            return torch.empty(0, device=links.device)
        queries, memory = outputs[self.project_query], outputs[self.project_memory]
        queries = queries[: int(packing.target.lengths.sum())].view(-1, self.heads, self.key_width)
        keys = memory[: int(packing.source.lengths.sum()), : self.sizes[0]]
        keys = keys.reshape(-1, self.memory_heads, self.key_width)
        keys = keys.repeat_interleave(self.heads // self.memory_heads, 1)
        chosen = slice(None) if head is None else slice(head - 1, head)
        return link_weights(queries[:, chosen], keys[:, chosen], packing, links)

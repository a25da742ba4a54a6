"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), of padded sentences and of packs.

Attention has two steps: *project* computes queries, keys and values; *attend* computes weighted
means of values. A decoder's cache sits between the two steps, and neither depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.models.kernels.packs import link_weights
from nmt.models.layers.attention import Attend, Heads, attention_weights, split_heads
from nmt.models.layers.basic import glorot
from nmt.models.layers.cache import KeyValueCache, OrderedCache, SharedCache, TokenMixer
from nmt.models.layers.sentences import Sentences


class SelfAttention(TokenMixer):
    """Self-attention: queries, keys and values of the same input, from one fused projection."""

    def __init__(
        self,
        heads: Heads,
        attention_fn: nn.Module | None = None,
        rotation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        # Glorot over the fused [D, 3D] matrix, as tensor2tensor did in 2017. fairseq gets the same
        # bound with a gain of 1 / sqrt(2) on three separate matrices.
        self.project_in = glorot(nn.Linear(heads.width, sum(heads.sizes), bias=heads.bias))
        self.attend = Attend(heads, attention_fn)
        self.rotation = rotation

    def new_cache(self) -> KeyValueCache:
        """Return a cache that keeps the order of the keys, if the result may depend on it."""
        return SharedCache() if self.attend.is_plain else OrderedCache()

    def project(self, x: Tensor, sentences: Sentences) -> tuple[Tensor, ...]:
        """Return queries, keys and values of `x`, [B, H, T, C]; of a pack side by side, [P, W]."""
        projected, attend = self.project_in(x), self.attend
        if self.rotation is not None:
            projected = self._rotated(projected, sentences.positions(x))
        return sentences.split(projected, attend.sizes, attend.counts)

    def _rotated(self, projected: Tensor, positions: Tensor) -> Tensor:
        """Return `projected` [..., T, W] with its queries and keys rotated by `positions`."""
        assert self.rotation is not None
        *turning_sizes, value_size = self.attend.sizes
        turning, values = projected.split_with_sizes([sum(turning_sizes), value_size], -1)
        heads = turning.view(*turning.shape[:-1], -1, self.attend.widths[0])
        return torch.cat((self.rotation(heads, positions).flatten(-2), values), -1)

    def forward(self, x: Tensor, sentences: Sentences, causal: bool = False) -> Tensor:
        """Attend within each sentence; see :meth:`TokenMixer.forward`."""
        mixed = sentences.mix(self.attend, self.project(x, sentences), causal)
        output: Tensor = self.attend.output(mixed)
        return output


class CrossAttention(nn.Module):
    """Cross-attention: queries from one sequence, keys and values from another."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        queries, *keys_and_values = heads.sizes
        self.project_query = glorot(nn.Linear(heads.width, queries, bias=heads.bias))
        self.project_memory = glorot(nn.Linear(heads.width, sum(keys_and_values), bias=heads.bias))
        self.attend = Attend(heads)

    def project(self, encoded: Tensor, sentences: Sentences) -> tuple[Tensor, ...]:
        """Return the memory: keys and values of the encoder's output.

        Args:
            encoded: padded sentences [B, S, D], or a pack [P', D].
            sentences: the sources.

        Returns:
            Keys [B, H, S, C] and values [B, H, S, C']; of a pack both side by side, [P', W].
        """
        sizes, counts = self.attend.sizes[1:], self.attend.counts[1:]
        return sentences.split(self.project_memory(encoded), sizes, counts)

    def forward(self, x: Tensor, memory: Sequence[Tensor], sentences: Sentences) -> Tensor:
        """Attend from `x` to the projected memory; returns the shape of `x`.

        Args:
            x: padded sentences [B, Q, D], or a pack [P, D].
            memory: from :meth:`project`.
            sentences: those of `x`, and the sources that they attend to.
        """
        attend = self.attend
        queries = sentences.split(self.project_query(x), attend.sizes[:1], attend.counts[:1])
        output: Tensor = attend.output(sentences.mix(attend, (*queries, *memory)))
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor, head: int | None = None) -> Tensor:
        """Return the attention weights [B, Q, S] of `x` [B, Q, D]: of a head, or the mean."""
        heads, shared, _ = self.attend.counts
        queries = split_heads(self.project_query(x), heads)
        keys = keys.repeat_interleave(heads // shared, dim=1)
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
            links: [2, n] int64, the tokens; see :func:`~nmt.models.kernels.packs.link_weights`.
            head: from 1; None for the mean of all heads.
        """
        if self.project_query not in outputs:
            return torch.empty(0, device=links.device)
        queries, memory = outputs[self.project_query], outputs[self.project_memory]
        (heads, shared, _), (width, _) = self.attend.counts, self.attend.widths
        queries = queries[: int(packing.target.lengths.sum())].view(-1, heads, width)
        keys = memory[: int(packing.source.lengths.sum()), : self.attend.sizes[1]]
        keys = keys.reshape(-1, shared, width).repeat_interleave(heads // shared, 1)
        chosen = slice(None) if head is None else slice(head - 1, head)
        return link_weights(queries[:, chosen], keys[:, chosen], packing, links)

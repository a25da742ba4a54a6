"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), of padded sentences and of packs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.models.kernels.packs import link_weights
from nmt.models.layers.attention import (
    AttentionConfig,
    AttentionInput,
    MultiHeadAttention,
    attention_weights,
    split_heads,
    split_parts,
)
from nmt.models.layers.cache import (
    DecodingStep,
    KeyValueCache,
    OrderedCache,
    SharedCache,
    TokenMixer,
)
from nmt.models.layers.sentences import Packed, SentenceLayout


class SelfAttention(MultiHeadAttention, TokenMixer):
    """Self-attention: queries, keys and values of the same input, from one fused projection."""

    def __init__(
        self,
        config: AttentionConfig,
        attention_fn: nn.Module | None = None,
        rotation: nn.Module | None = None,
    ) -> None:
        super().__init__(config, attention_fn)
        # Glorot over the fused [D, 3D] matrix, as tensor2tensor did in 2017. fairseq gets the same
        # bound with a gain of 1 / sqrt(2) on three separate matrices.
        self.project_in = config.new_projection(sum(config.qkv_sizes))
        self.attention_fn = config.new_attention_fn(attention_fn)
        self.output = config.new_output()
        self.rotation = rotation

    def forward(self, x: Tensor, sentences: SentenceLayout, causal: bool = False) -> Tensor:
        """Attend within each sentence; see :meth:`TokenMixer.forward`."""
        qkv = self.project_in(x)  # [B, T, H C + G C + G C']; of a pack [P, ...]
        # Before the cache: each key is rotated once, by its own position.
        if self.rotation is not None:
            qkv = self.rotated(qkv, sentences.positions(x))
        if isinstance(sentences, Packed):
            attended = sentences.attend(self, (qkv,), causal)  # [P, H C']
        else:
            queries, keys, values = split_parts(qkv, self.qkv_sizes, self.qkv_heads)  # [B, H, T, C]
            mask = sentences.mask
            if isinstance(sentences, DecodingStep):
                keys, values, mask = sentences.extend_past(keys, values)  # [B, G, S, C]
            # Fused kernels take the rate as an argument and know no training mode.
            dropout = self.dropout if self.training else 0.0
            inputs = AttentionInput(queries, keys, values, mask, causal, dropout)
            attended = self.attention_fn(inputs)  # [B, H, T, C']
            attended = attended.transpose(1, 2).flatten(2)  # [B, T, H C'], heads side by side
        # Concat(head_1, ..., head_h) W^O (section 3.2.2).
        output: Tensor = self.output(attended)  # [B, T, D]
        return output

    def fused_matrices(self) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Yield the projection to queries, keys and values."""
        yield self.project_in.weight, self.qkv_sizes

    def new_cache(self) -> KeyValueCache:
        """Return a cache that keeps the order of the keys, if the result may depend on it."""
        return SharedCache() if self.is_plain else OrderedCache()

    def rotated(self, qkv: Tensor, positions: Tensor) -> Tensor:
        """Return `qkv` [..., T, W] with its queries and keys rotated by `positions`."""
        assert self.rotation is not None
        # With queries and keys rotated, and values not, a score depends on the distance alone.
        *turning_sizes, value_size = self.qkv_sizes
        turning, values = qkv.split_with_sizes([sum(turning_sizes), value_size], -1)
        # Queries and keys have heads of one width, so one call rotates both.
        heads = turning.view(*turning.shape[:-1], -1, self.widths[0])
        return torch.cat((self.rotation(heads, positions).flatten(-2), values), -1)


class CrossAttention(MultiHeadAttention):
    """Cross-attention: queries from one sequence, keys and values from another."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        queries, keys, values = config.qkv_sizes
        self.project_query = config.new_projection(queries)
        # Keys and values in one product: both read the same encoder output.
        self.project_memory = config.new_projection(keys + values)
        self.attention_fn = config.new_attention_fn()
        self.output = config.new_output()

    def project(self, encoded: Tensor, sentences: SentenceLayout) -> tuple[Tensor, ...]:
        """Return the memory: keys and values of the encoder's output.

        Args:
            encoded: padded sentences [B, S, D], or a pack [P', D].
            sentences: the sources.

        Returns:
            Keys [B, G, S, C] and values [B, G, S, C']; of a pack both side by side, [P', W].
        """
        memory = self.project_memory(encoded)
        if isinstance(sentences, Packed):
            return (memory,)
        return split_parts(memory, self.qkv_sizes[1:], self.qkv_heads[1:])

    def forward(self, x: Tensor, memory: Sequence[Tensor], sentences: SentenceLayout) -> Tensor:
        """Attend from `x` to the projected memory; returns the shape of `x`.

        Args:
            x: padded sentences [B, Q, D], or a pack [P, D].
            memory: from :meth:`project`.
            sentences: the sentences of `x`, and the sources that they attend to.
        """
        queries = self.project_query(x)  # [B, Q, H C]; of a pack [P, H C]
        if isinstance(sentences, Packed):
            attended = sentences.attend(self, (queries, *memory))  # [P, H C']
        else:
            queries = split_heads(queries, self.qkv_heads[0])  # [B, H, Q, C]
            keys, values = memory  # [B, G, S, C] and [B, G, S, C']
            dropout = self.dropout if self.training else 0.0
            inputs = AttentionInput(queries, keys, values, sentences.mask, dropout=dropout)
            attended = self.attention_fn(inputs)  # [B, H, Q, C']
            attended = attended.transpose(1, 2).flatten(2)  # [B, Q, H C'], heads side by side
        output: Tensor = self.output(attended)  # [B, Q, D]
        return output

    def fused_matrices(self) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Yield the projection to keys and values."""
        yield self.project_memory.weight, self.qkv_sizes[1:]

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor, head: int | None = None) -> Tensor:
        """Return the attention weights [B, Q, S] of `x` [B, Q, D]: of a head, or the mean."""
        heads, shared, _ = self.qkv_heads
        queries = split_heads(self.project_query(x), heads)
        # Neighbouring query heads share a key head, which repeats next to itself.
        keys = keys.repeat_interleave(heads // shared, dim=1)
        # Scaling the queries usually costs less than scaling the scores.
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [B, H, Q, S]
        weights = attention_weights(scores, mask)
        return weights.mean(1) if head is None else weights[:, head - 1]

    @contextmanager
    def recorded(self) -> Iterator[dict[nn.Module, Tensor]]:
        """Yield a mapping that receives the output of each projection within the context."""
        outputs: dict[nn.Module, Tensor] = {}
        parts = (self.project_query, self.project_memory)
        # Hooks instead of a second forward pass: guided alignment needs the projections of the pass
        # that training computes anyway.
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
        # LayerDrop left the layer out of this micro-batch.
        if self.project_query not in outputs:
            return torch.empty(0, device=links.device)
        queries, memory = outputs[self.project_query], outputs[self.project_memory]
        (heads, shared, _), (width, _) = self.qkv_heads, self.widths
        # The pack may be filled with padding, which has no links.
        queries = queries[: int(packing.target.lengths.sum())].view(-1, heads, width)
        keys = memory[: int(packing.source.lengths.sum()), : self.qkv_sizes[1]]
        keys = keys.reshape(-1, shared, width).repeat_interleave(heads // shared, 1)
        chosen = slice(None) if head is None else slice(head - 1, head)
        return link_weights(queries[:, chosen], keys[:, chosen], packing, links)

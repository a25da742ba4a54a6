"""Encoder and decoder layers of a Transformer, and the state of its decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from nmt.models.kernels.gpu import own_add_norm
from nmt.models.layers.basic import Dropout, ResidualModule, deep_norm_scales
from nmt.models.layers.cache import BeamAncestry, Cache, Memory
from nmt.models.layers.sentences import Padded, SentenceLayout
from nmt.models.transformer.config import Stack, TransformerSizes
from nmt.models.transformer.multi_head import CrossAttention, SelfAttention


class Layer(ResidualModule):
    """The residual connections, dropout and adapter of encoder and decoder layers."""

    def __init__(self, config: TransformerSizes, stack: Stack) -> None:
        super().__init__()
        self.is_pre_norm = config.residual == "pre_norm"
        self.alpha: float | None = None
        """DeepNorm's factor of the residual stream; None without DeepNorm."""
        if config.residual == "deep_norm":
            self.alpha, _ = deep_norm_scales(config.encoder_layers, config.decoder_layers)[stack]
        self.dropout = Dropout(config.dropout)
        self.adapter: nn.Module | None = None
        """Layer after the last sublayer, from :class:`nmt.models.adaptation.Adapters`."""

    def add_and_norm(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return LayerNorm(x + Dropout(sublayer(x))), the paper's "Add & Norm" (section 3.1).

        Pre-norm normalises the input of the sublayer instead, x + Dropout(sublayer(LayerNorm(x)))
        (Wang et al. 2019; tensor2tensor since October 2017). DeepNorm multiplies the residual
        stream, LayerNorm(alpha x + Dropout(sublayer(x))) (Wang et al. 2022, *DeepNet*).
        """
        dropout: Callable[[Tensor], Tensor] = self.dropout
        if self.is_pre_norm:
            # The stream has no norm from end to end, so gradients pass deep stacks unchanged.
            return x + dropout(sublayer(norm(x)))
        output = sublayer(x)
        fused = own_add_norm(x, output, norm, self.alpha or 1.0, self.dropout)
        if fused is not None:
            return fused
        # alpha > 1 lets the stream outweigh each sublayer, which bounds the updates of deep stacks.
        if self.alpha is not None:
            x = self.alpha * x
        # Section 5.4: dropout before the addition, the norm after it.
        return norm(x + dropout(output))


class EncoderLayer(Layer):
    """Figure 1, left: self-attention, then a feed-forward layer."""

    def __init__(self, config: TransformerSizes) -> None:
        super().__init__(config, "encoder")
        self.attention = config.encoder_attention.sublayer(config.attention, config.positions)
        self.attention_norm = config.new_norm()
        self.feed_forward = config.new_feed_forward()
        self.feed_forward_norm = config.new_norm()

    def forward(self, x: Tensor, sentences: SentenceLayout) -> Tensor:
        """Return the layer's output for its input `x`, of the same shape.

        Args:
            x: padded sentences [B, S, D], or a pack [P, D].
            sentences: the sentences of `x`, `Padded` or `Packed`.
        """
        return self._sublayers(x, partial(self.attention, sentences=sentences))

    def _sublayers(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        # Section 3.1: two sublayers, each with a residual connection and a norm.
        x = self.add_and_norm(x, attend, self.attention_norm)
        x = self.add_and_norm(x, self.feed_forward, self.feed_forward_norm)
        # Bapna and Firat (2019) put one adapter after the whole layer, not one after each sublayer.
        return x if self.adapter is None else self.adapter(x)


class DecoderLayer(Layer):
    """Figure 1, right: masked self-attention, attention to the encoder's output, feed-forward.

    The feed-forward layer may be left out.
    """

    def __init__(self, config: TransformerSizes) -> None:
        super().__init__(config, "decoder")
        self.attention = config.decoder_attention.sublayer(config.attention, config.positions)
        self.attention_norm = config.new_norm()
        self.cross = CrossAttention(config.attention)
        self.cross_norm = config.new_norm()
        self.feed_forward = config.new_feed_forward() if config.decoder_feed_forward else None
        self.feed_forward_norm = config.new_norm() if config.decoder_feed_forward else None

    def forward(
        self, x: Tensor, memory: Sequence[Tensor], targets: SentenceLayout, sources: SentenceLayout
    ) -> Tensor:
        """Return the layer's output for whole targets, of the same shape.

        Args:
            x: padded targets [B, T, D], or a pack [P, D].
            memory: keys and values of the sources, from :meth:`CrossAttention.project`.
            targets: the sentences of `x`.
            sources: these, and the sources that they attend to.
        """
        # Section 3.2.3: a later position in sight would be the answer that training asks for.
        attend = partial(self.attention, sentences=targets, causal=True)
        return self._sublayers(x, attend, memory, sources)

    def step(
        self,
        x: Tensor,
        memory: Sequence[Tensor],
        sources: SentenceLayout,
        cache: Cache,
        ancestry: BeamAncestry,
    ) -> Tensor:
        """Return the layer's output [B, K, D] for one step; adds the step to the cache."""
        # No causal mask: the cache holds nothing later than this step.
        attend = partial(cache.attend, self.attention, ancestry=ancestry)
        return self._sublayers(x, attend, memory, sources)

    def _sublayers(
        self,
        x: Tensor,
        attend: Callable[[Tensor], Tensor],
        memory: Sequence[Tensor],
        sources: SentenceLayout,
    ) -> Tensor:
        # Queries come from the decoder, keys and values from the encoder (section 3.2.3).
        attend_to_source = partial(self.cross, memory=memory, sentences=sources)
        x = self.add_and_norm(x, attend, self.attention_norm)
        x = self.add_and_norm(x, attend_to_source, self.cross_norm)
        if self.feed_forward is not None and self.feed_forward_norm is not None:
            x = self.add_and_norm(x, self.feed_forward, self.feed_forward_norm)
        return x if self.adapter is None else self.adapter(x)

    def source_attention(
        self, x: Tensor, keys: Tensor, mask: Tensor, head: int | None = None
    ) -> Tensor:
        """Return the attention weights [B, T, S] of whole targets `x` [B, T, D] to the source."""
        attend = partial(self.attention, sentences=Padded(), causal=True)
        x = self.add_and_norm(x, attend, self.attention_norm)
        # Pre-norm normalises a sublayer's input, so the queries read the normalised stream.
        queries = self.cross_norm(x) if self.is_pre_norm else x
        return self.cross.weights(queries, keys, mask, head)


def scale_for_deep_norm(encoder: Sequence[EncoderLayer], decoder: Sequence[DecoderLayer]) -> None:
    """Multiply the weights of feed-forward, values and attention output by DeepNorm's beta."""
    scales = deep_norm_scales(len(encoder), len(decoder))
    for encoder_layer in encoder:
        _scale_layer(encoder_layer, scales["encoder"][1])
    for decoder_layer in decoder:
        _scale_layer(decoder_layer, scales["decoder"][1])


@torch.no_grad()
def _scale_layer(layer: EncoderLayer | DecoderLayer, beta: float) -> None:
    assert isinstance(layer.attention, SelfAttention)
    attentions: list[SelfAttention | CrossAttention] = [layer.attention]
    into_values = [layer.attention.project_in]
    if isinstance(layer, DecoderLayer):
        attentions.append(layer.cross)
        into_values.append(layer.cross.project_memory)
    for attention, project in zip(attentions, into_values, strict=True):
        # The values are the last rows of the fused matrix. DeepNorm leaves queries and keys
        # unscaled.
        project.weight[-attention.qkv_sizes[-1] :] *= beta
        attention.output.weight *= beta
    for name, weight in layer.feed_forward.named_parameters() if layer.feed_forward else ():
        if weight.dim() > 1 and not name.startswith("gate"):
            weight.mul_(beta)


class TransformerState:
    """Decoder state: projected sources, and the keys and values of the steps so far."""

    def __init__(self, memory: Memory, caches: Sequence[Cache]) -> None:
        # A search asks many times for what training asks once.
        memory.settle()
        self.memory = memory
        self.caches = caches
        self.ancestry = BeamAncestry()
        self.rows = 1

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows; see :class:`nmt.models.base.State`."""
        # Sentences never change order. If their number is unchanged, none was dropped.
        sentences = rows[:, 0] // self.rows if len(rows) < len(self.memory) else None
        if sentences is not None:
            self.memory.select(sentences)
        if not self.ancestry.has_branched:
            # Only before the first branch can a cache still choose how rows share it.
            self.caches = [cache.for_rows(rows.shape[1]) for cache in self.caches]
        self.ancestry.select(rows)
        for cache in self.caches:
            cache.select(rows, sentences)
        self.rows = rows.shape[1]

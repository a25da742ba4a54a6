"""Encoder and decoder layers of a Transformer, and the state of its decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nmt.models.layers.basic import Residual, deep_norm_scales
from nmt.models.layers.cache import BeamAncestry, Cache, Memory, TokenMixer
from nmt.models.layers.sentences import Padded, Sentences
from nmt.models.transformer.multi_head import CrossAttention, SelfAttention


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
        project.weight[-attention.attend.sizes[-1] :] *= beta
        attention.attend.output.weight *= beta
    for name, weight in layer.feed_forward.named_parameters() if layer.feed_forward else ():
        if weight.dim() > 1 and not name.startswith("gate"):
            weight.mul_(beta)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (section 3.1)."""

    def __init__(
        self, attention: TokenMixer, feed_forward: nn.Module, residual: Callable[[], Residual]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(self, x: Tensor, sentences: Sentences) -> Tensor:
        """Return the layer's output for its input `x`, of the same shape.

        `prepare` and `combine` around each sublayer compute LayerNorm(x + Dropout(sublayer(x))), or
        the residual that the recipe chooses; see :mod:`nmt.models.layers.basic`.

        Args:
            x: padded sentences [B, S, D], or a pack [P, D].
            sentences: the sentences of `x`, `Padded` or `Packed`.
        """
        attended = self.attention(self.attention_residual.prepare(x), sentences)
        return self._after_attention(x, attended)

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.attention_residual.combine(x, attended)
        output = self.feed_forward(self.feed_forward_residual.prepare(x))
        return self.feed_forward_residual.combine(x, output)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward (section 3.1).

    The feed-forward layer may be left out.
    """

    def __init__(
        self,
        attention: TokenMixer,
        cross: CrossAttention,
        feed_forward: nn.Module | None,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = residual()
        self.cross = cross
        self.cross_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual() if feed_forward else None

    def forward(
        self, x: Tensor, memory: Sequence[Tensor], targets: Sentences, sources: Sentences
    ) -> Tensor:
        """Return the layer's output for whole targets, of the same shape.

        Args:
            x: padded targets [B, T, D], or a pack [P, D].
            memory: keys and values of the sources, from :meth:`CrossAttention.project`.
            targets: the sentences of `x`.
            sources: these, and the sources that they attend to.
        """
        return self._after_attention(x, self._attend_to_past(x, targets), memory, sources)

    def source_attention(
        self, x: Tensor, keys: Tensor, mask: Tensor, head: int | None = None
    ) -> Tensor:
        """Return the attention weights [B, T, S] of whole targets `x` [B, T, D] to the source."""
        x = self.attention_residual.combine(x, self._attend_to_past(x, Padded()))
        return self.cross.weights(self.cross_residual.prepare(x), keys, mask, head)

    def _attend_to_past(self, x: Tensor, targets: Sentences) -> Tensor:
        attended: Tensor = self.attention(self.attention_residual.prepare(x), targets, causal=True)
        return attended

    def step(
        self,
        x: Tensor,
        memory: Sequence[Tensor],
        sources: Sentences,
        cache: Cache,
        ancestry: BeamAncestry,
    ) -> Tensor:
        """Return the layer's output [B, K, D] for one step; adds the step to the cache."""
        attended = cache.attend(self.attention, self.attention_residual.prepare(x), ancestry)
        return self._after_attention(x, attended, memory, sources)

    def _after_attention(
        self, x: Tensor, attended: Tensor, memory: Sequence[Tensor], sources: Sentences
    ) -> Tensor:
        x = self.attention_residual.combine(x, attended)
        context = self.cross(self.cross_residual.prepare(x), memory, sources)
        x = self.cross_residual.combine(x, context)
        if self.feed_forward is None or self.feed_forward_residual is None:
            return x
        output = self.feed_forward(self.feed_forward_residual.prepare(x))
        return self.feed_forward_residual.combine(x, output)


class TransformerState:
    """Decoder state: projected sources, and the keys and values of the steps so far."""

    def __init__(self, memory: Memory, caches: Sequence[Cache]) -> None:
        memory.settle()
        self.memory = memory
        self.caches = caches
        self.ancestry = BeamAncestry()
        self.rows = 1

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows; see :class:`nmt.models.base.State`."""
        # Sentences keep their order, so that as many as before are the same ones.
        sentences = rows[:, 0] // self.rows if len(rows) < len(self.memory) else None
        if sentences is not None:
            self.memory.select(sentences)
        if not self.ancestry.has_branched:
            self.caches = [cache.for_rows(rows.shape[1]) for cache in self.caches]
        self.ancestry.select(rows)
        for cache in self.caches:
            cache.select(rows, sentences)
        self.rows = rows.shape[1]

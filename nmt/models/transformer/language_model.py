"""A Transformer's decoder alone: a language model of target text (Radford et al. 2018, GPT).

It has the contract of a model and reads no source: every source gives the same logits. So it trains
on the targets of a dataset, scores translations, and joins an ensemble of translation models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.models.base import (
    AttentionMap,
    Model,
    ModelConfig,
    ResidualPart,
    State,
    architectures,
    check_rates,
    check_sizes,
)
from nmt.models.kernels.packs import filled_if_costly
from nmt.models.layers.attention import MultiHeadAttention
from nmt.models.layers.basic import Dropout, ResidualModule, embedding
from nmt.models.layers.cache import BeamAncestry, Cache, DecodingStep, Memory, TokenMixer
from nmt.models.layers.feed_forward import FeedForwardPart, feed_forwards
from nmt.models.layers.sentences import Packed, Padded, SentenceLayout
from nmt.models.recording import recorded_attention
from nmt.models.transformer.layers import EncoderLayer, TransformerState
from nmt.models.transformer.model import TransformerConfig
from nmt.models.transformer.multi_head import SelfAttention
from nmt.models.transformer.positions import PositionPart, position_parts


@architectures.register("transformer_lm")
@dataclass(frozen=True, kw_only=True)
class TransformerLMConfig(ModelConfig):
    """The sizes of a language model."""

    decoder_layers: int = 6
    """Number of layers."""
    d_model: int = 512
    """Width of embeddings and layers; input and output share one matrix."""
    d_ff: int = 2048
    """Inner width of the feed-forward layers."""
    heads: int = 8
    """Attention heads."""
    dropout: float = 0.1
    """Dropout rate on sublayer outputs and embedding sums."""
    positions: PositionPart = position_parts["sinusoidal"]
    """Position encoding."""
    feed_forward: FeedForwardPart = feed_forwards["gelu"]
    """The feed-forward layers."""

    def __post_init__(self) -> None:
        check_sizes(self, "decoder_layers", "d_model", "d_ff", "heads")
        check_rates(self, "dropout")
        # Rotary positions need heads of an even width, and sinusoids an even model.
        if self.d_model % (2 * self.heads):
            raise ValueError(
                f"d_model must be an even number for each of {self.heads} heads, not {self.d_model}"
            )

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised language model of the target vocabulary."""
        return TransformerLM(self, target_vocabulary)

    def sizes(self) -> TransformerConfig:
        """Return the sizes of the layers, as of a Transformer with pre-norm."""
        return TransformerConfig(
            encoder_layers=self.decoder_layers,
            decoder_layers=self.decoder_layers,
            d_model=self.d_model,
            d_ff=self.d_ff,
            heads=self.heads,
            dropout=self.dropout,
            positions=self.positions,
            feed_forward=self.feed_forward,
            # As in GPT-2 (Radford et al. 2019), with a norm after the last layer.
            residual="pre_norm",
        )


class CausalLayer(EncoderLayer):
    """Self-attention to the past, and feed-forward."""

    def forward(self, x: Tensor, sentences: SentenceLayout) -> Tensor:
        """Return the layer's output for padded sentences [B, T, D], or for a pack [P, D]."""
        # An encoder layer with a causal mask is a decoder layer without cross-attention.
        return self._sublayers(x, partial(self.attention, sentences=sentences, causal=True))

    def step(self, x: Tensor, cache: Cache, ancestry: BeamAncestry) -> Tensor:
        """Return the layer's output [B, K, D] for one step; adds the step to the cache."""
        return self._sublayers(x, partial(cache.attend, self.attention, ancestry=ancestry))


class TransformerLM(Model):
    """A language model with the contract of translation models."""

    reads_source: ClassVar[bool] = False

    def __init__(self, config: TransformerLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.target_embedding = embedding(vocabulary, config.d_model)
        self.scale = config.d_model**0.5
        self.positions = config.positions.embedding(config.d_model, "interleaved")
        self.dropout = Dropout(config.dropout)
        sizes = config.sizes()
        layers = [CausalLayer(sizes) for _ in range(config.decoder_layers)]
        self.decoder = cast("list[CausalLayer]", nn.ModuleList(layers))
        self.decoder_end = sizes.new_norm()
        self.output = nn.Linear(config.d_model, vocabulary, bias=False)
        # Tied as in section 3.4 of the Transformer's paper.
        self.output.weight = self.target_embedding.weight
        attentions = [part for part in self.modules() if isinstance(part, MultiHeadAttention)]
        self.packs = all(attention.is_plain for attention in attentions)

    def fsdp_modules(self) -> Iterable[nn.Module]:
        """Return the linear layers."""
        linear = (part for part in self.modules() if isinstance(part, nn.Linear))
        return (part for part in linear if part is not self.output)

    def residual_modules(self, part: ResidualPart) -> Iterable[ResidualModule]:
        """Return the layers, or the attention in them."""
        kind = CausalLayer if part == "layers" else TokenMixer
        return (module for module in self.modules() if isinstance(module, kind))

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder output [B, T, D] for whole targets."""
        return self._decode(target, Padded())

    def decode_packs(self, source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output [P, D] at the target's tokens; computes no padding."""
        tokens = len(target)
        _, target, packing = filled_if_costly(source, target, packing)
        attention = self.decoder[0].attention
        assert isinstance(attention, SelfAttention)
        return self._decode(target, Packed(packing.target, attention=attention))[:tokens]

    def attention_maps(self, source: Tensor, target: Tensor) -> list[AttentionMap]:
        """Return the self-attention of every layer."""
        return recorded_attention([], self.decoder, partial(self.decode, source, target))

    def start(self, source: Tensor) -> TransformerState:
        """Return empty caches. A language model has no source."""
        # Of width 0: the memory only tells the state how many sentences there are.
        nothing = torch.empty(len(source), 0, device=source.device)
        caches = [layer.attention.new_cache() for layer in self.decoder]
        return TransformerState(Memory([(nothing, nothing)], None), caches)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens` [B, K]; advances the state."""
        assert isinstance(state, TransformerState)
        x = self._embed(tokens, DecodingStep(state.ancestry.steps))
        state.ancestry.grow(tokens)
        for layer, cache in zip(self.decoder, state.caches, strict=True):
            x = layer.step(x, cache, state.ancestry)
        last: Tensor = self.decoder_end(x)
        return last

    def _decode(self, target: Tensor, sentences: SentenceLayout) -> Tensor:
        """Return the decoder output [B, T, D] or [P, D] of targets [B, T] or [P]."""
        x = self._embed(target, sentences)
        for layer in self.decoder:
            x = layer(x, sentences)
        last: Tensor = self.decoder_end(x)
        return last

    def _embed(self, tokens: Tensor, sentences: SentenceLayout) -> Tensor:
        positions = sentences.encodings(self.positions, tokens)
        embedded: Tensor = self.dropout(self.target_embedding(tokens) * self.scale + positions)
        return embedded

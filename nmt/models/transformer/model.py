"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017), and its named sizes.

The paper leaves some details open. For these, the model follows tensor2tensor of June 2017: biases
on the attention projections, LayerNorm with eps 1e-6, Glorot uniform weights, embeddings N(0,
d^-0.5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.data.vocabulary import BOS
from nmt.errors import NmtError
from nmt.models.base import AttentionMap, Model, ResidualPart, State, architectures
from nmt.models.kernels.packs import filled_if_costly
from nmt.models.layers.attention import MultiHeadAttention
from nmt.models.layers.basic import Dropout, ResidualModule, embedding
from nmt.models.layers.cache import Memory, TokenMixer
from nmt.models.layers.sentences import Packed, Padded, SentenceLayout
from nmt.models.recording import recorded_attention
from nmt.models.transformer.config import TransformerSizes
from nmt.models.transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    Layer,
    TransformerState,
    scale_for_deep_norm,
)
from nmt.models.transformer.multi_head import CrossAttention
from nmt.models.transformer.recurrences import RecurrencePart, SSRUPart


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerSizes):
    """The sizes of a Transformer, by the paper's symbols; the defaults are its base model."""

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised Transformer.

        Raises:
            NmtError: ``tied_embeddings: all`` without a shared vocabulary.
        """
        if self.tied_embeddings == "all" and not shared:
            raise NmtError(
                "model.tied_embeddings: 'all' needs a vocabulary shared by both languages; "
                "with separate ones use 'decoder'"
            )
        return Transformer(self, source_vocabulary, target_vocabulary)


def begins_with_zeros(config: TransformerConfig) -> bool:
    """Return whether zeros take the place of the embedding of BOS."""
    pattern = config.decoder_attention
    return isinstance(pattern, RecurrencePart) and pattern.zero_bos


class Transformer(Model):
    """The encoder-decoder of the paper's figure 1."""

    encoder_layer: ClassVar[type[EncoderLayer]] = EncoderLayer
    decoder_layer: ClassVar[type[DecoderLayer]] = DecoderLayer
    """Classes of the layers; a plugin's model may override them."""

    def __init__(
        self, config: TransformerConfig, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        tied = config.tied_embeddings
        # Section 3.4. N(0, d^-0.5) times sqrt(d) has variance 1, the magnitude of the sinusoids.
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.alignment_layer = cast("int", config.resolved().alignment_layer)
        self.alignment_head = config.alignment_head
        self.target_embedding = embedding(target_vocabulary, config.d_model)
        if begins_with_zeros(config):
            self.target_embedding.zero_token = BOS
        # Section 3.4: one matrix for both languages, so the two vocabularies must be one.
        self.source_embedding = (
            self.target_embedding if tied == "all" else embedding(source_vocabulary, config.d_model)
        )
        self.output = nn.Linear(config.d_model, target_vocabulary, bias=config.output_bias)
        if config.output_bias:
            nn.init.zeros_(self.output.bias)
        # As the tied matrix would begin, so the first loss is near ln V here, too.
        if tied == "none":
            nn.init.normal_(self.output.weight, std=config.d_model**-0.5)
        else:
            # Section 3.4: the pre-softmax matrix is the embedding.
            self.output.weight = self.target_embedding.weight
        positions = partial(config.positions.embedding, config.d_model, config.sinusoids)
        self.positions = positions()
        self.source_positions = positions() if config.positions.is_separate else self.positions
        self.dropout = Dropout(config.dropout)
        encoder = [self.encoder_layer(config) for _ in range(config.encoder_layers)]
        decoder = [self.decoder_layer(config) for _ in range(config.decoder_layers)]
        self.encoder = cast("list[EncoderLayer]", nn.ModuleList(encoder))
        self.decoder = cast("list[DecoderLayer]", nn.ModuleList(decoder))
        # Patterns and encodings inside the attention need padded sentences, so one of them rules
        # out packs.
        attentions = [part for part in self.modules() if isinstance(part, MultiHeadAttention)]
        self.packs = all(attention.is_plain for attention in attentions)
        # With pre-norm the last sublayer of a stack is not normalised, so a norm follows the stack.
        end = config.new_norm if config.residual == "pre_norm" else nn.Identity
        self.encoder_end, self.decoder_end = end(), end()
        if config.residual == "deep_norm":
            scale_for_deep_norm(encoder, decoder)

    def fsdp_modules(self) -> Iterable[nn.Module]:
        """Return the linear layers."""
        linear = (part for part in self.modules() if isinstance(part, nn.Linear))
        # Losses multiply by the output weight without calling the layer, whose hooks would gather
        # it.
        return (part for part in linear if part is not self.output)

    def residual_modules(self, part: ResidualPart) -> Iterable[ResidualModule]:
        """Return the layers of both stacks, or the attention in them."""
        kinds = Layer if part == "layers" else (TokenMixer, CrossAttention)
        return (module for module in self.modules() if isinstance(module, kinds))

    def encode(self, source: Tensor) -> Memory:
        """Return the encoder's output z, projected to each decoder layer's keys and values."""
        sentences = Padded.of(source)
        encoded = self.encode_tokens(source, sentences)
        # Every decoder layer reads the final encoder output, so its keys and values are known
        # before the first step.
        layers = [layer.cross.project(encoded, sentences) for layer in self.decoder]
        return Memory(layers, sentences.mask)

    def encode_tokens(self, source: Tensor, sentences: SentenceLayout) -> Tensor:
        """Return the encoder's output [B, S, D] or [P, D] of sources [B, S] or [P]."""
        x = self._embed(self.source_embedding, self.source_positions, source, sentences)
        for layer in self.encoder:
            x = layer(x, sentences)
        encoded: Tensor = self.encoder_end(x)
        return encoded

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder output [B, T, D] for whole targets.

        Targets begin with BOS: the outputs "shifted right" of figure 1.
        """
        memory, targets = self.encode(source), Padded()
        x = self._embed(self.target_embedding, self.positions, target, targets)
        for layer, keys_values in zip(self.decoder, memory.layers, strict=True):
            x = layer(x, keys_values, targets, memory)
        last: Tensor = self.decoder_end(x)
        return last

    def decode_packs(self, source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output [P, D] at the target's tokens; computes no padding."""
        tokens = len(target)
        source, target, packing = filled_if_costly(source, target, packing)
        # Any layer will do, as all have the same sizes; cross-attention, because a recurrence may
        # replace the self-attention.
        packed = partial(Packed, attention=self.decoder[0].cross)
        sources, targets = packed(packing.source), packed(packing.target)
        # One object per kind of attention, so that all layers share its masks and its choice of
        # kernel.
        across = packed(packing.target, keys=packing.source)
        encoded = self.encode_tokens(source, sources)
        y = self._embed(self.target_embedding, self.positions, target, targets)
        for layer in self.decoder:
            y = layer(y, layer.cross.project(encoded, sources), targets, across)
        last: Tensor = self.decoder_end(y)
        # Without the tokens that filled the pack.
        return last[:tokens]

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention [B, T, S] of the alignment layer's head, or of all its heads."""
        memory, targets = self.encode(source), Padded()
        assert memory.mask is not None
        x = self._embed(self.target_embedding, self.positions, target, targets)
        number = self.alignment_layer - 1
        # Layers above the chosen one cannot change its attention.
        for layer, keys_values in zip(self.decoder[:number], memory.layers, strict=False):
            x = layer(x, keys_values, targets, memory)
        chosen, keys = self.decoder[number], memory.layers[number][0]
        return chosen.source_attention(x, keys, memory.mask, self.alignment_head)

    def attention_maps(self, source: Tensor, target: Tensor) -> list[AttentionMap]:
        """Return the attention of every layer, by the function that computes it in training."""
        return recorded_attention(self.encoder, self.decoder, partial(self.decode, source, target))

    def decode_links(
        self, source: Tensor, target: Tensor, packing: Packing, links: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the decoder output [P, D], and the alignment layer's attention [n]; one pass.

        The attention is [0] if layer dropout left out the layer.
        """
        cross = self.decoder[self.alignment_layer - 1].cross
        with cross.recorded() as outputs:
            decoded = self.decode_packs(source, target, packing)
        return decoded, cross.link_weights(outputs, packing, links, self.alignment_head)

    def align_by(self, layer: int) -> None:
        """Choose the decoder layer, from 1, that :meth:`source_attention` returns.

        Raises:
            NmtError: the decoder has no such layer.
        """
        if not 1 <= layer <= len(self.decoder):
            raise NmtError(f"layer {layer}: the decoder has {len(self.decoder)} layers")
        if layer != self.alignment_layer:
            # A head of one layer says nothing about the heads of another.
            self.alignment_layer, self.alignment_head = layer, None

    def start(self, source: Tensor) -> TransformerState:
        """Return the encoded sources, and empty caches."""
        caches = [layer.attention.new_cache() for layer in self.decoder]
        return TransformerState(self.encode(source), caches)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens` [B, K]; advances the state."""
        assert isinstance(state, TransformerState)
        state.ancestry.grow(tokens)
        step = state.ancestry.step()
        x = self._embed(self.target_embedding, self.positions, tokens, step)  # [B, K, D]
        for layer, keys_values, cache in zip(
            self.decoder, state.memory.layers, state.caches, strict=True
        ):
            x = layer.step(x, keys_values, state.memory, cache, state.ancestry)
        last: Tensor = self.decoder_end(x)
        return last

    def _embed(
        self, table: nn.Module, positions: nn.Module, tokens: Tensor, sentences: SentenceLayout
    ) -> Tensor:
        encodings = sentences.encodings(positions, tokens)
        # Section 5.4: dropout on the sum of embedding and position, in both stacks.
        embedded: Tensor = self.dropout(table(tokens) * self.scale + encodings)
        return embedded


# Table 3 of the paper, rows base and big.
architectures.add("transformer_base", TransformerConfig())

architectures.add(
    "transformer_big", TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.3)
)

# Section 6.1: English-French was trained with dropout 0.1 instead of 0.3.
architectures.add(
    "transformer_big_en_fr", TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.1)
)

# fairseq's transformer_iwslt_de_en: separate vocabularies, decoder input and output tied.
architectures.add(
    "transformer_iwslt_de_en",
    TransformerConfig(d_ff=1024, heads=4, dropout=0.3, tied_embeddings="decoder"),
)

# The tiny model of Revisit-MMT for Multi30k (Wu et al. 2021).
architectures.add(
    "transformer_tiny",
    TransformerConfig(
        encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, heads=4, dropout=0.3
    ),
)

# A deep encoder and a single decoder layer (Kasai et al. 2021), whose steps are cheap.
architectures.add(
    "transformer_deep_shallow",
    TransformerConfig(encoder_layers=12, decoder_layers=1, dropout=0.2),
)

# Marian's students for browsers and phones (Bogoychev et al. 2020, github.com/browsermt/students),
# with the later size between the two (mozilla/translations). Positions, the first input and the
# head of the alignments are Marian's, too, so that its engines can run them.
STUDENT = TransformerConfig(
    decoder_layers=2,
    decoder_attention=SSRUPart(name="ssru", zero_bos=True),
    sinusoids="concatenated",
    alignment_head=1,
)

architectures.add("student_base", STUDENT)

architectures.add("student_base_memory", replace(STUDENT, d_model=384, d_ff=1536, decoder_layers=4))

architectures.add("student_tiny_ssru", replace(STUDENT, d_model=256, d_ff=1536))

# The same width with attention in a single decoder layer, for CTranslate2: faster, for equal BLEU
# (docs/results/speed.md).
architectures.add(
    "student_tiny",
    TransformerConfig(
        encoder_layers=4,
        decoder_layers=1,
        d_model=256,
        d_ff=1536,
        sinusoids="concatenated",
        alignment_head=1,
    ),
)

"""ConvS2S (Gehring et al. 2017, *Convolutional Sequence to Sequence Learning*).

Convolutions with gated linear units, attention in every layer of the decoder, weight normalisation,
and a scaling by sqrt(0.5) wherever two terms are added, which keeps variances constant. The
computation is the same as in fairseq's ``fconv``, by the paper's authors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.packing import Pack, Packing
from nmt.data.vocabulary import PAD
from nmt.models.base import (
    AttentionMap,
    Model,
    ModelConfig,
    State,
    architectures,
    check_rates,
    check_sizes,
)
from nmt.models.kernels.packs import filled_if_costly
from nmt.models.layers.basic import Dropout, TokenEmbedding
from nmt.models.layers.cache import RecurrentState
from nmt.models.rivals.convolution import extend_past, no_past, weight_normalised, windows
from nmt.models.transformer.positions import LearnedPositions

HALF = math.sqrt(0.5)

Memory = tuple[Tensor, Tensor, Tensor]
"""Keys [B, S, E], values [B, S, E], mask [B, S]."""

Shape = tuple[int, int, int]
"""Layers, their width, and their kernel."""


@dataclass(frozen=True, kw_only=True)
class ConvS2SConfig(ModelConfig):
    """The layers of ConvS2S; the defaults are the paper's for English-Romanian."""

    encoder: tuple[Shape, ...] = ((20, 512, 3),)
    """Encoder layers from the bottom: lists of number, width and kernel."""
    decoder: tuple[Shape, ...] = ((20, 512, 3),)
    """Decoder layers from the bottom: lists of number, width and kernel."""
    embedding_width: int = 512
    """Width of embeddings, and of the queries, keys and values of attention."""
    output_width: int = 512
    """Width of the input of the output layer."""
    max_positions: int = 1024
    """Rows of the tables of positions, one for each language; later positions share the last."""
    dropout: float = 0.1
    """Dropout rate on embeddings, inputs of convolutions and the decoder output."""

    def __post_init__(self) -> None:
        check_sizes(self, "embedding_width", "output_width", "max_positions")
        check_rates(self, "dropout")
        for name in ("encoder", "decoder"):
            shapes = getattr(self, name)
            if not shapes or min(min(shape) for shape in shapes) < 1:
                raise ValueError(f"{name} needs layers, widths and kernels of at least 1")
        if any(kernel % 2 == 0 for _, _, kernel in self.encoder):
            raise ValueError("kernels of the encoder must be odd, to have a middle")

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised ConvS2S; embeddings and output layer are three matrices."""
        return ConvS2S(self, source_vocabulary, target_vocabulary)


def linear(inputs: int, outputs: int, dropout: float = 0.0) -> nn.Linear:
    """Return a weight-normalised layer that keeps its input's variance (section 3.5).

    Args:
        inputs: input width.
        outputs: output width.
        dropout: dropout rate on the input.
    """
    # Dropout scales what it keeps by 1 / (1 - p), and the variance with it.
    return _normal(nn.Linear(inputs, outputs), math.sqrt((1 - dropout) / inputs))


def convolution(inputs: int, outputs: int, kernel: int, dropout: float) -> nn.Linear:
    """Return a weight-normalised layer over windows, for a GLU to `outputs` (section 3.5).

    The layer computes twice `outputs`, which the gated linear unit halves.
    """
    fan_in = kernel * inputs
    # A GLU's output has about a quarter of its input's variance, hence the 4.
    return _normal(nn.Linear(fan_in, 2 * outputs), math.sqrt(4 * (1 - dropout) / fan_in))


def _normal(layer: nn.Linear, std: float) -> nn.Linear:
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return weight_normalised(layer)


class Embedding(nn.Module):
    """Words and their positions, both learned (section 3.1)."""

    def __init__(self, vocabulary: int, config: ConvS2SConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.words = TokenEmbedding(vocabulary, width)
        self.positions = LearnedPositions(config.max_positions, width, std=0.1)
        self.dropout = Dropout(config.dropout)
        # Section 3.5: all embeddings begin as N(0, 0.1).
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, tokens: Tensor, first: int = 0, pack: Pack | None = None) -> Tensor:
        """Embed tokens [B, T] at the positions from `first` on, or a pack [P]: [..., E]."""
        length = tokens.shape[-1] if pack is None else pack.longest
        positions = self.positions(first, length, tokens.device)
        if pack is not None:
            positions = positions.index_select(0, pack.positions)
        embedded: Tensor = self.dropout(self.words(tokens) + positions)
        return embedded


class ConvLayer(nn.Module):
    """A convolution with a gated linear unit and a residual connection (section 3.2)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.inputs, self.kernel = inputs, kernel
        self.dropout = Dropout(dropout)
        self.convolution = convolution(inputs, outputs, kernel, dropout)
        self.bypass = linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def unit(self, window: Tensor) -> Tensor:
        """Return the gated convolution [..., D] of windows [..., kernel * I]."""
        return F.glu(self.convolution(window), dim=-1)

    def forward(self, x: Tensor, sentences: Tensor | Pack) -> Tensor:
        """Map [..., I] to [..., D] in the encoder.

        Args:
            x: padded sentences [B, S, I], or a pack [P, I].
            sentences: [B, S, 1], 0 at padding, else 1; or the pack.
        """
        window = windows(self.dropout(x), self.kernel, sentences=sentences)
        output: Tensor = (self.unit(window) + self.bypass(x)) * HALF
        return output


class ConvDecoderLayer(ConvLayer):
    """A causal convolution with its own attention to the source (section 3.3)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, config: ConvS2SConfig) -> None:
        super().__init__(inputs, outputs, kernel, config.dropout)
        self.ask = linear(outputs, config.embedding_width)
        self.answer = linear(config.embedding_width, outputs)

    def weights(self, queries: Tensor, memory: Memory) -> Tensor:
        """Return the attention weights [B, Q, S] of queries [B, Q, E]."""
        keys, _, mask = memory
        scores = (queries @ keys.transpose(1, 2)).masked_fill(~mask[:, None], -math.inf)
        weights: Tensor = scores.softmax(dim=-1)
        return weights

    def queries(self, x: Tensor, embedded: Tensor) -> Tensor:
        """Return the queries [..., E] of `x` [..., D] and the embedded words [..., E]."""
        # Equation 1: the layer's state and the embedding of the word before.
        queries: Tensor = (self.ask(x) + embedded) * HALF
        return queries

    def attend(
        self, x: Tensor, embedded: Tensor, memory: Memory, pack: Pack | None = None
    ) -> Tensor:
        """Add the source context to `x` [B, Q, D], or to a pack [P, D].

        Args:
            x: gated convolutions.
            embedded: words [..., E], which the queries use.
            memory: of padded sentences, of a pack, too.
            pack: of `x`, if it is one.
        """
        _, values, mask = memory
        queries = self.queries(x, embedded)
        if pack is not None:
            # Convolutions work on packs, but the plain attention here needs padded sentences.
            queries = pack.pad(queries)
        # The mean of m values has a variance m times smaller (section 3.4).
        scale = mask.sum(1)[:, None, None].to(values.dtype).sqrt()
        context = self.weights(queries, memory).to(values.dtype) @ values * scale
        if pack is not None:
            context = pack.unpad(context)
        output: Tensor = (self.answer(context) + x) * HALF
        return output

    def all_steps(
        self, x: Tensor, embedded: Tensor, memory: Memory, pack: Pack | None = None
    ) -> Tensor:
        """Map whole targets [B, T, I], or a pack [P, I], to [..., D]."""
        output: Tensor = self.attend(self.units(x, pack), embedded, memory, pack) + self.bypass(x)
        return output * HALF

    def units(self, x: Tensor, pack: Pack | None = None) -> Tensor:
        """Return the gated convolution [..., D] of whole targets [B, T, I], or a pack [P, I]."""
        return self.unit(windows(self.dropout(x), self.kernel, causal=True, sentences=pack))

    def step(
        self, x: Tensor, embedded: Tensor, memory: Memory, past: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Map one position of K rows [B, K, I] to [B, K, D]; also returns the new past."""
        window, past = extend_past(past, x.flatten(0, 1))
        unit = self.unit(window).view(*x.shape[:2], -1)
        attended = self.attend(unit, embedded, memory)
        return (attended + self.bypass(x)) * HALF, past


class ConvS2S(Model):
    """The model of the paper's figure 1."""

    packs = True

    def __init__(
        self, config: ConvS2SConfig, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        width, dropout = config.embedding_width, config.dropout
        self.source_embedding = Embedding(source_vocabulary, config)
        self.target_embedding = Embedding(target_vocabulary, config)
        self.dropout = Dropout(dropout)
        self.encoder_input = linear(width, config.encoder[0][1], dropout)
        self.encoder = nn.ModuleList(
            ConvLayer(*sizes, dropout) for sizes in layer_sizes(config.encoder)
        )
        self.encoder_output = linear(config.encoder[-1][1], width)
        self.decoder_input = linear(width, config.decoder[0][1], dropout)
        decoder = [ConvDecoderLayer(*sizes, config) for sizes in layer_sizes(config.decoder)]
        self.decoder = cast("list[ConvDecoderLayer]", nn.ModuleList(decoder))
        self.decoder_output = linear(config.decoder[-1][1], config.output_width)
        self.output = linear(config.output_width, target_vocabulary, dropout)

    def encode(self, source: Tensor) -> Memory:
        """Return the keys and values for every layer of the decoder, and the mask."""
        mask = source != PAD
        embedded = self.source_embedding(source)
        return *self._encode(embedded, mask[..., None].to(embedded.dtype)), mask

    def _encode(self, embedded: Tensor, sentences: Tensor | Pack) -> tuple[Tensor, Tensor]:
        """Return the keys and values [..., E] of embedded sources [..., E]."""
        x = self.encoder_input(embedded)
        for layer in self.encoder:
            x = layer(x, sentences)
        keys = self.encoder_output(x)
        if keys.requires_grad:  # every decoder layer adds a gradient; fairseq's factor
            share = 1 / (2 * len(self.decoder))
            keys.register_hook(lambda gradient: gradient * share)
        # Values carry the word itself besides its context (section 3.3).
        return keys, (keys + embedded) * HALF

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder output [B, T, D] for whole targets."""
        return self._decode(self.target_embedding(target), self.encode(source))

    def decode_packs(self, source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output [P, D] at the target's tokens; only attention is padded."""
        tokens = len(target)
        source, target, packing = filled_if_costly(source, target, packing)
        embedded = self.source_embedding(source, pack=packing.source)
        keys, values = map(packing.source.pad, self._encode(embedded, packing.source))
        embedded = self.target_embedding(target, pack=packing.target)
        memory = keys, values, packing.source.mask
        return self._decode(embedded, memory, packing.target)[:tokens]

    def _decode(self, embedded: Tensor, memory: Memory, pack: Pack | None = None) -> Tensor:
        """Return the decoder output [..., D] of embedded targets [B, T, E], or a pack [P, E]."""
        x = self.decoder_input(embedded)
        for layer in self.decoder:
            x = layer.all_steps(x, embedded, memory, pack)
        # Dropout between the last two linear layers, as in fairseq.
        last: Tensor = self.dropout(self.decoder_output(x))
        return last

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention [B, T, S], averaged over all decoder layers."""
        # Every layer has its own attention, and none is marked as the alignment.
        maps = self.attention_maps(source, target)
        return torch.cat([layer.weights for layer in maps], dim=1).mean(1)

    def attention_maps(self, source: Tensor, target: Tensor) -> list[AttentionMap]:
        """Return the attention of each decoder layer, which has one head."""
        memory = self.encode(source)
        embedded = self.target_embedding(target)
        x, maps = self.decoder_input(embedded), []
        for number, layer in enumerate(self.decoder, 1):
            weights = layer.weights(layer.queries(layer.units(x), embedded), memory)
            maps.append(AttentionMap("cross", number, weights[:, None]))
            x = layer.all_steps(x, embedded, memory)
        return maps

    def start(self, source: Tensor) -> RecurrentState:
        """Return the encoded sources, and empty pasts."""
        memory = self.encode(source)
        pasts = [
            no_past(len(source), layer.inputs, layer.kernel, 1, like=memory[0])
            for layer in self.decoder
        ]
        return RecurrentState(memory, pasts)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens` [B, K]; advances the state."""
        assert isinstance(state, RecurrentState)
        memory = cast("Memory", state.source)
        embedded = self.target_embedding(tokens.reshape(-1, 1), state.position)
        embedded = embedded.view(*tokens.shape, -1)  # [B, K, E]
        x = self.decoder_input(embedded)
        for at, layer in enumerate(self.decoder):
            x, state.rows[at] = layer.step(x, embedded, memory, state.rows[at])
        state.position += 1
        last: Tensor = self.decoder_output(x)
        return last


def layer_sizes(shapes: tuple[Shape, ...]) -> list[tuple[int, int, int]]:
    """Return the input width, the output width and the kernel of every layer."""
    # The first layer's input is already projected to the first width.
    inputs, layers = shapes[0][1], []
    for number, width, kernel in shapes:
        for _ in range(number):
            layers.append((inputs, width, kernel))
            inputs = width
    return layers


def _both(*shapes: Shape, embedding_width: int = 512, dropout: float) -> ConvS2SConfig:
    return ConvS2SConfig(
        encoder=shapes, decoder=shapes, embedding_width=embedding_width, dropout=dropout
    )


architectures.add("conv_s2s", ConvS2SConfig())
# The models of the paper's section 4.1, then the larger models that fairseq released.
architectures.add("conv_s2s_wmt_en_de", _both((10, 512, 3), (3, 768, 3), (2, 2048, 1), dropout=0.1))
architectures.add(
    "conv_s2s_wmt_en_fr",
    _both((5, 512, 3), (4, 768, 3), (3, 1024, 3), (1, 2048, 1), (1, 4096, 1), dropout=0.1),
)
architectures.add(
    "conv_s2s_wmt_en_de_fairseq",
    _both((9, 512, 3), (4, 1024, 3), (2, 2048, 1), embedding_width=768, dropout=0.2),
)
architectures.add(
    "conv_s2s_wmt_en_fr_fairseq",
    _both(
        *((6, 512, 3), (4, 768, 3), (3, 1024, 3), (1, 2048, 1), (1, 4096, 1)),
        embedding_width=768,
        dropout=0.1,
    ),
)
# fairseq's fconv_iwslt_de_en, with an output width of 256 as well, for small corpora.
architectures.add(
    "conv_s2s_small",
    ConvS2SConfig(
        encoder=((4, 256, 3),),
        decoder=((3, 256, 3),),
        embedding_width=256,
        output_width=256,
        dropout=0.2,
    ),
)

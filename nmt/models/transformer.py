"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017), in the paper's order.

Post-norm, sinusoidal positions, embeddings scaled by sqrt(d) and tied three ways, dropout on every
sublayer's output and on the sums of embeddings and positions. Where the paper leaves something
open, this does what tensor2tensor did in June 2017: biases on the attention projections, LayerNorm
with eps 1e-6, Glorot uniform weights, embeddings N(0, d^-0.5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.format import PAD
from nmt.errors import NmtError
from nmt.models.attention import CrossAttention, Heads, SelfAttention
from nmt.models.base import Model, ModelConfig, State, architectures, check_rates, check_sizes
from nmt.models.dropout import Dropout
from nmt.models.initialization import embedding, glorot
from nmt.models.positions import Layout, SinusoidalPositions
from nmt.models.state import Cache, Memory


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The sizes of a Transformer, by the paper's symbols; the defaults are its base model."""

    encoder_layers: int = 6
    """N of the encoder."""
    decoder_layers: int = 6
    """N of the decoder."""
    d_model: int = 512
    """Width of the states."""
    d_ff: int = 2048
    """Inner width of the feed-forward layers."""
    heads: int = 8
    """h, attention heads."""
    d_k: int | None = None
    """Width of a head's queries and keys; None for d_model / heads."""
    d_v: int | None = None
    """Width of a head's values; None for d_model / heads."""
    dropout: float = 0.1
    """P_drop, on sublayer outputs and on embedding sums."""
    attention_dropout: float = 0.0
    """Dropout on attention weights; the paper has none."""
    activation_dropout: float = 0.0
    """Dropout inside the feed-forward layer; the paper has none."""
    attention_bias: bool = True
    """Biases on the attention projections, as tensor2tensor had in 2017 and fairseq has."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """"all": source, target and output share one matrix; "decoder": target and output do."""
    sinusoids: Layout = "interleaved"
    """The paper's interleaved sines and cosines, or tensor2tensor's concatenated ones."""

    def __post_init__(self) -> None:
        check_sizes(self, "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads")
        check_sizes(self, *[name for name in ("d_k", "d_v") if getattr(self, name) is not None])
        if self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by {self.heads} heads")
        check_rates(self, "dropout", "attention_dropout", "activation_dropout")

    @property
    def attention(self) -> Heads:
        """The sizes of every attention."""
        head = self.d_model // self.heads
        return Heads(
            width=self.d_model,
            count=self.heads,
            key_width=self.d_k or head,
            value_width=self.d_v or head,
            bias=self.attention_bias,
            dropout=self.attention_dropout,
        )

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """A freshly initialised Transformer."""
        if self.tied_embeddings == "all" and not shared:
            raise NmtError(
                "model.tied_embeddings: 'all' needs a vocabulary shared by both languages; "
                "with separate ones use 'decoder'"
            )
        return Transformer(self, source_vocabulary, target_vocabulary)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (section 3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = glorot(nn.Linear(config.d_model, config.d_ff))
        self.dropout = Dropout(config.activation_dropout)
        self.outer = glorot(nn.Linear(config.d_ff, config.d_model))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        output: Tensor = self.outer(self.dropout(F.relu(self.inner(x))))
        return output


class Residual(nn.Module):
    """LayerNorm(x + Dropout(sublayer(x))) (sections 3.1 and 5.4)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.d_model, eps=1e-6)

    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        """The sublayer's output [..., D] added to its input and normalised."""
        normed: Tensor = self.norm(x + self.dropout(output))
        return normed


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (section 3.1)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.attention)
        self.attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States [B, S, D] to states; mask [B, 1, 1, S] is True at tokens."""
        queries, keys, values = self.attention.project(x)
        x = self.attention_residual(x, self.attention.attend(queries, keys, values, mask))
        output: Tensor = self.feed_forward_residual(x, self.feed_forward(x))
        return output


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward (section 3.1)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.attention)
        self.attention_residual = Residual(config)
        self.cross = CrossAttention(config.attention)
        self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """States [B, T, D] of whole targets to states."""
        queries, keys, values = self.attention.project(x)
        attended = self.attention.attend(queries, keys, values, causal=True)
        return self._after_attention(x, attended, memory, mask)

    def step(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor, cache: Cache) -> Tensor:
        """States [B, K, D] of one step of K rows to states; the cache grows by that step."""
        queries, keys, values = self.attention.project(x.flatten(0, 1)[:, None])  # [N, H, 1, C]
        attended = self.attention.attend(queries, *cache.extend(keys, values))  # [N, 1, D]
        return self._after_attention(x, attended.view_as(x), memory, mask)

    def _after_attention(
        self, x: Tensor, attended: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        x = self.attention_residual(x, attended)
        x = self.cross_residual(x, self.cross(x, *memory, mask))
        output: Tensor = self.feed_forward_residual(x, self.feed_forward(x))
        return output


class TransformerState:
    """Sources projected once per sentence, and the keys and values of the steps so far."""

    def __init__(self, memory: Memory, layers: int) -> None:
        self.memory = memory
        self.caches = [Cache() for _ in range(layers)]
        self.rows = 1
        self.position = 0

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats, reorders or drops rows; see :class:`nmt.models.base.State`."""
        self.memory.select(rows[:, 0] // self.rows)
        self.rows = rows.shape[1]
        flat = rows.reshape(-1)
        for cache in self.caches:
            cache.select(flat)


class Transformer(Model):
    """The encoder-decoder of the paper's figure 1."""

    def __init__(
        self, config: TransformerConfig, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        tied = config.tied_embeddings
        self.scale = math.sqrt(config.d_model)
        self.target_embedding = embedding(target_vocabulary, config.d_model)
        self.source_embedding = (
            self.target_embedding if tied == "all" else embedding(source_vocabulary, config.d_model)
        )
        self.output = nn.Linear(config.d_model, target_vocabulary, bias=False)
        if tied == "none":
            nn.init.normal_(self.output.weight, std=config.d_model**-0.5)
        else:
            self.output.weight = self.target_embedding.weight
        self.positions = SinusoidalPositions(config.d_model, config.sinusoids)
        self.dropout = Dropout(config.dropout)
        encoder = [EncoderLayer(config) for _ in range(config.encoder_layers)]
        decoder = [DecoderLayer(config) for _ in range(config.decoder_layers)]
        self.encoder = cast("list[EncoderLayer]", nn.ModuleList(encoder))
        self.decoder = cast("list[DecoderLayer]", nn.ModuleList(decoder))

    def encode(self, source: Tensor) -> Memory:
        """The encoder's output, projected to each decoder layer's keys and values."""
        mask = (source != PAD)[:, None, None, :]  # [B, 1, 1, S]
        positions = self.positions(0, source.shape[1], source.device)
        x = self._embed(self.source_embedding, source, positions)  # [B, S, D]
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory([layer.cross.project(x) for layer in self.decoder], mask)

    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """The decoder's output [B, T, D] for whole targets."""
        memory = self.encode(source)
        positions = self.positions(0, target.shape[1], target.device)
        x = self._embed(self.target_embedding, target, positions)  # [B, T, D]
        for layer, keys_values in zip(self.decoder, memory.layers, strict=True):
            x = layer(x, keys_values, memory.mask)
        return x

    def start(self, source: Tensor, max_steps: int) -> TransformerState:
        """The encoded sources, and empty caches."""
        return TransformerState(self.encode(source), len(self.decoder))

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Logits [B, K, V] of the token that follows `tokens` [B, K]."""
        assert isinstance(state, TransformerState)
        position = self.positions(state.position, 1, tokens.device)  # [1, D], for all rows
        x = self._embed(self.target_embedding, tokens, position)  # [B, K, D]
        for layer, keys_values, cache in zip(
            self.decoder, state.memory.layers, state.caches, strict=True
        ):
            x = layer.step(x, keys_values, state.memory.mask, cache)
        state.position += 1
        return self.project(x)

    def _embed(self, table: nn.Module, tokens: Tensor, positions: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(table(tokens) * self.scale + positions)
        return embedded


architectures.add("transformer_base", TransformerConfig())
architectures.add(
    "transformer_big", TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.3)
)
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

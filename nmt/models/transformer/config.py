"""The sizes and parts of a Transformer, which a recipe chooses, and its layers made of these.

Variants later than the paper are parts with a short interface each: `residual`, `feed_forward`,
`positions`, `patterns`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from torch import nn

from nmt.models.base import ModelConfig, check_rates, check_sizes
from nmt.models.layers.attention import AttentionConfig
from nmt.models.layers.basic import Norm, Placement, make_norm
from nmt.models.layers.feed_forward import FeedForwardPart, feed_forwards
from nmt.models.transformer.patterns import AttentionPattern, patterns
from nmt.models.transformer.positions import Layout, PositionPart, position_parts
from nmt.recipe.config import MayChange

AnySizes = TypeVar("AnySizes", bound="TransformerSizes")
Stack = Literal["encoder", "decoder"]

DEEP = 6
"""Decoders of at least this many layers align words best with the last layer but one, as Garg et
al. (2019) found, too; smaller decoders with the last layer."""


@dataclass(frozen=True, kw_only=True)
class TransformerSizes(ModelConfig):
    """The values of a Transformer's recipe, and new layers of these values."""

    encoder_layers: int = 6
    """N of the encoder."""
    decoder_layers: int = 6
    """N of the decoder."""
    d_model: int = 512
    """Width of embeddings and layers."""
    d_ff: int = 2048
    """Inner width of the feed-forward layers."""
    heads: int = 8
    """h, attention heads."""
    d_k: int | None = None
    """Width of a head's queries and keys; null for d_model / heads."""
    d_v: int | None = None
    """Width of a head's values; null for d_model / heads."""
    dropout: float = 0.1
    """Dropout rate (P_drop) on sublayer outputs and embedding sums."""
    attention_dropout: float = 0.0
    """Dropout on attention weights; the paper has none."""
    activation_dropout: float = 0.0
    """Dropout inside the feed-forward layer; the paper has none."""
    attention_bias: bool = True
    """Biases on the attention projections, as tensor2tensor had in 2017 and fairseq has."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """"all": source, target and output share one matrix; "decoder": target and output do."""
    output_bias: bool = False
    """Bias of each token in the output layer, as in Marian."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by the square root of d_model, as in the paper."""
    sinusoids: Layout = "interleaved"
    """The paper's interleaved sines and cosines; tensor2tensor's concatenated ones; or halves, all
    sines before all cosines with the paper's exponents, as in Hugging Face's Marian."""
    positions: PositionPart = position_parts["sinusoidal"]
    """Position encoding."""
    feed_forward: FeedForwardPart = feed_forwards["relu"]
    """The feed-forward layers."""
    residual: Placement = "post_norm"
    """Normalisation of a sublayer: after the addition, as in the paper; before the sublayer; or
    after the addition with DeepNorm's weights, which make a hundred layers trainable."""
    norm: Norm = "layer_norm"
    """The paper's LayerNorm, or RMSNorm."""
    norm_epsilon: float = 1e-6
    """Number that a norm adds to the variance: tensor2tensor's; PyTorch's is 1e-5."""
    key_value_heads: int | None = None
    """Number of heads of keys and values, shared by groups of query heads. 1 is multi-query
    attention; null means the number of `heads`."""
    encoder_attention: AttentionPattern = patterns["full"]
    """Attention pattern of the encoder's self-attention."""
    decoder_attention: AttentionPattern = patterns["full"]
    """Attention pattern of the decoder's self-attention, over earlier positions; or a recurrence
    instead, whose steps are cheaper: ssru or average."""
    decoder_feed_forward: bool = True
    """Whether decoder layers have a feed-forward layer; Marian's smallest students have none."""
    alignment_layer: MayChange[int | None] = None
    """Decoder layer, from 1, whose attention to the source gives word alignments and the coverage
    penalty; null for the last layer, or with six or more layers the last but one. Runs store the
    number."""
    alignment_head: MayChange[int | None] = None
    """Head of that layer, from 1, whose attention is used; null for the mean of all heads."""

    def __post_init__(self) -> None:
        check_sizes(self, "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads")
        limits = {"layer": (self.decoder_layers, "decoder layers"), "head": (self.heads, "heads")}
        for name, (most, those) in limits.items():
            chosen = getattr(self, f"alignment_{name}")
            if chosen is not None and not 1 <= chosen <= most:
                raise ValueError(
                    f"alignment_{name} must be from 1 to {most}, the {those}, not {chosen}"
                )
        check_sizes(self, *[name for name in ("d_k", "d_v") if getattr(self, name) is not None])
        # Section 3.5 pairs each sine with a cosine.
        if self.positions.name == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        # Section 3.2.2: d_k = d_v = d_model / h.
        if (self.d_k is None or self.d_v is None) and self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is not divisible by {self.heads} heads")
        check_rates(self, "dropout", "attention_dropout", "activation_dropout")
        if not 0.0 < self.norm_epsilon < 1.0:
            raise ValueError(f"norm_epsilon lies between 0 and 1, not {self.norm_epsilon:g}")
        self._check_parts()

    def _check_parts(self) -> None:
        """Raise a ValueError if the parts do not fit together."""
        shared = self.key_value_heads
        if shared is not None and (shared < 1 or self.heads % shared):
            raise ValueError(f"{self.heads} heads cannot share {shared} key_value_heads evenly")
        for name in ("encoder_attention", "decoder_attention"):
            self.positions.check_pattern(name, getattr(self, name).name)
        # A recurrence runs from left to right, so a source word would not see the words after it.
        if not self.encoder_attention.is_bidirectional:
            raise ValueError(
                f"encoder_attention {self.encoder_attention.name} sees the past alone; use it for "
                "decoder_attention"
            )
        # DeepNorm scales the values and the attention output; a recurrence has neither.
        if self.residual == "deep_norm" and not self.decoder_attention.is_bidirectional:
            raise ValueError(
                f"deep_norm has no scale for the weights of {self.decoder_attention.name}; "
                "take residual post_norm or pre_norm"
            )
        if self.positions.name == "rotary":
            config = self.attention
            if config.d_k % 2:
                raise ValueError(f"rotary positions need an even width of a head, not {config.d_k}")
            if config.qkv_sizes[2] % 2:  # next to which the keys are stored
                raise ValueError(f"rotary positions need an even d_v, not {config.d_v}")

    def resolved(self: AnySizes) -> AnySizes:
        """Return the config with the number of the alignment layer filled in."""
        default = self.decoder_layers - (self.decoder_layers >= DEEP)
        # The number is stored instead of null, so a run keeps its layer if the default changes.
        return replace(self, alignment_layer=self.alignment_layer or default)

    @property
    def attention(self) -> AttentionConfig:
        """Sizes of every attention."""
        return AttentionConfig(
            d_model=self.d_model,
            heads=self.heads,
            d_k=self.d_k or self.d_model // self.heads,
            d_v=self.d_v or self.d_model // self.heads,
            key_value_heads=self.key_value_heads,
            bias=self.attention_bias,
            dropout=self.attention_dropout,
        )

    def new_norm(self) -> nn.Module:
        """Return a new normalisation of vectors [..., D]."""
        return make_norm(self.norm, self.d_model, self.norm_epsilon)

    def new_feed_forward(self) -> nn.Module:
        """Return a new feed-forward layer."""
        return self.feed_forward.build(self.d_model, self.d_ff, self.activation_dropout)

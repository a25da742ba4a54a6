"""The settings in a checkpoint of fairseq: what the model computes, and how to search."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmt.errors import NmtError
from nmt.models.base import architectures
from nmt.models.layers.feed_forward import feed_forwards
from nmt.models.transformer.model import TransformerConfig
from nmt.models.transformer.positions import PositionPart
from nmt.recipe.config import build

SECTIONS = ("generation", "task", "model")
"""Sections of the configuration of fairseq 0.10 and later; later sections have priority."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "swish",
}
"""Names of ``activation_fn``, and of the feed-forward layer with that activation."""

ABSENT = (None, False, 0, "")
EXPECTED: dict[str, tuple[object, ...]] = {
    "task": ("translation", None),
    **{
        key: ABSENT
        for key in (
            "adaptive_input",
            "adaptive_softmax_cutoff",
            "base_layers",
            "char_inputs",
            "cross_self_attention",
            "decoder_layers_to_keep",
            "encoder_layers_to_keep",
            "layernorm_embedding",
            "no_cross_attention",
            "no_decoder_final_norm",
            "unkpen",
        )
    },
}
"""Supported values of the settings; a key may also be absent."""

ALIKE = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
"""Settings that must be the same in encoder and decoder."""

OFFSET = 2
"""Position of the first token: the id of padding plus one."""


@dataclass(frozen=True)
class FairseqSettings:
    """Plain values by fairseq's names."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def from_checkpoint(cls, path: Path, checkpoint: Mapping[Any, Any]) -> FairseqSettings:
        """Return the settings of a checkpoint.

        Raises:
            NmtError: the model has a part that this toolkit lacks.
        """
        values: dict[str, Any] = {}
        configuration = _plain(checkpoint.get("cfg"))
        for section in (
            *(_plain(configuration.get(name)) for name in SECTIONS),
            _plain(checkpoint.get("args")),
        ):
            for key, value in section.items():
                # fairseq 0.12 nests encoder.embed_dim, which was encoder_embed_dim before.
                inner = _plain(value) if key in ("encoder", "decoder") else {}
                values |= {f"{key}_{name}": inner[name] for name in inner} or {str(key): value}
        for name in ("tokenizer", "bpe", "task"):
            section = _plain(configuration.get(name))
            values[name] = section.get("_name", values.get(name)) if section else values.get(name)
            values |= {key: section[key] for key in section if str(key).startswith("moses_")}
        settings = cls(path, values)
        settings._check()
        return settings

    def _check(self) -> None:
        """Raise an NmtError if the model has a part that this toolkit lacks."""
        arch = self.arch
        if not isinstance(arch, str) or not arch.startswith("transformer"):
            raise NmtError(f"{self.path}: nmt has no counterpart of arch {arch}; of transformer_*")
        for key, expected in EXPECTED.items():
            value = self.value(key, None)
            if value not in expected:
                raise NmtError(f"{self.path}: nmt has no counterpart of {key}: {value}")
        for key in ALIKE:
            sides = [self.value(f"{stack}_{key}", None) for stack in ("encoder", "decoder")]
            if sides[0] != sides[1]:
                raise NmtError(
                    f"{self.path}: nmt has no counterpart of a decoder_{key} {sides[1]} other than "
                    f"encoder_{key} {sides[0]}"
                )
        for key in ("decoder_input_dim", "decoder_output_dim"):
            if self.value(key, None) not in (None, self.width):
                raise NmtError(
                    f"{self.path}: nmt has no counterpart of {key}: {self.value(key, None)}"
                )

    def value(self, key: str, default: Any) -> Any:
        """Return the value of a key, or the default if the key has no value.

        Raises:
            NmtError: the value is not of the type of the default, or not a plain value.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if default is None:
            kinds: tuple[type, ...] = (bool, int, float, str)
        else:
            kinds = (int, float) if type(default) is float else (type(default),)
        if type(value) not in kinds:
            what = "a plain value" if default is None else f"a {kinds[-1].__name__}"
            raise NmtError(f"{self.path}: {key}: expected {what}, not a {type(value).__name__}")
        # Bounded, because messages show it.
        return value[:99] if isinstance(value, str) else value

    def text(self, key: str) -> str:
        """Return the text of a key.

        Raises:
            NmtError: the key has no text, or a text that cannot be part of a file name.
        """
        text: str = self.value(key, "")
        if not text or not text.isprintable() or set(text) & set("/\\"):
            raise NmtError(f"{self.path}: {key} names no language: {text!r}")
        return text

    def size(self, key: str) -> int:
        """Return the value of a key, a number from 1."""
        size: int = self.value(key, 0)
        if size < 1:
            raise NmtError(f"{self.path}: {key}: expected a number from 1, not {size}")
        return size

    @property
    def arch(self) -> object:
        """Name of the architecture."""
        return self.value("arch", None) or self.value("_name", None)

    @property
    def width(self) -> int:
        """Width of embeddings and layers."""
        return self.size("encoder_embed_dim")

    @property
    def encoder_layers(self) -> int:
        """Number of layers of the encoder."""
        return self.size("encoder_layers")

    @property
    def decoder_layers(self) -> int:
        """Number of layers of the decoder."""
        return self.size("decoder_layers")

    @property
    def is_pre_norm(self) -> bool:
        """Whether norms come before the sublayers."""
        return bool(self.value("encoder_normalize_before", False))

    @property
    def tied(self) -> Literal["all", "decoder", "none"]:
        """The embeddings that share one matrix."""
        if self.value("share_all_embeddings", False):
            return "all"
        return "decoder" if self.value("share_decoder_input_output_embed", False) else "none"

    @property
    def positions(self) -> str:
        """Name of the encoding of positions."""
        if self.value("no_token_positional_embeddings", False):
            return "none"
        return "learned" if self.value("encoder_learned_pos", False) else "sinusoidal"

    def transformer(self, max_positions: int) -> TransformerConfig:
        """Return the recipe's section ``model``.

        Args:
            max_positions: rows of the tables of learned positions.

        Raises:
            NmtError: the settings do not fit each other.
        """
        fields = {
            "sinusoidal": {"offset": OFFSET},
            "learned": {"max_positions": max_positions, "separate": True},
        }
        positions = {"name": self.positions, **fields.get(self.positions, {})}
        activation = self.value("activation_fn", "relu")
        if activation not in ACTIVATIONS:
            raise NmtError(f"{self.path}: nmt has no counterpart of activation_fn {activation}")
        # relu_dropout is the older name.
        inner = self.value("activation_dropout", 0.0) or self.value("relu_dropout", 0.0)
        guided = self.value("alignment_layer", None)  # of transformer_align, from 0
        try:
            return TransformerConfig(
                arch=architectures["transformer_base"].arch,
                encoder_layers=self.encoder_layers,
                decoder_layers=self.decoder_layers,
                d_model=self.width,
                d_ff=self.size("encoder_ffn_embed_dim"),
                heads=self.size("encoder_attention_heads"),
                dropout=float(self.value("dropout", 0.1)),
                attention_dropout=float(self.value("attention_dropout", 0.0)),
                activation_dropout=float(inner),
                tied_embeddings=self.tied,
                # For the ids that are never predicted.
                output_bias=True,
                scale_embeddings=not self.value("no_scale_embedding", False),
                positions=build(PositionPart, positions, "positions"),
                # fairseq puts all sines before all cosines, unlike section 3.5 of the paper.
                sinusoids="concatenated",
                feed_forward=feed_forwards[ACTIVATIONS[activation]],
                residual="pre_norm" if self.is_pre_norm else "post_norm",
                # PyTorch's default.
                norm_epsilon=1e-5,
                alignment_layer=None if guided is None else guided + 1,
                alignment_head=1 if self.value("alignment_heads", 0) == 1 else None,
            )
        except ValueError as error:
            raise NmtError(f"{self.path}: {error}") from None

    def tokenisation(self, default: Literal["moses", "none"]) -> dict[str, Any]:
        """Return the tokenisation before BPE codes.

        Args:
            default: name of the tokenisation if the checkpoint names none.

        Raises:
            NmtError: this toolkit lacks the tokenizer.
        """
        names = {"moses": "moses", "space": "none", None: default}
        tokenizer = self.value("tokenizer", None)
        if tokenizer not in names:
            raise NmtError(f"{self.path}: nmt has no counterpart of tokenizer {tokenizer}")
        return {
            "tokenizer": names[tokenizer],
            "dash_splits": not self.value("moses_no_dash_splits", False),
            "escape": not self.value("moses_no_escape", False),
        }

    def search(self) -> dict[str, Any]:
        """Return the section ``search``: the rules of ``fairseq-generate`` for this model."""
        is_ranked_by_sum = self.value("unnormalized", False)
        alpha = 0.0 if is_ranked_by_sum else float(self.value("lenpen", 1.0))
        constraints: list[dict[str, Any]] = []
        if (least := self.value("min_len", 1)) > 0:
            constraints.append({"name": "min_length", "length": least})
        if (size := self.value("no_repeat_ngram_size", 0)) > 0:
            constraints.append({"name": "no_repeat_ngram", "size": size})
        longest = min(self.value("max_len_b", 200), self.value("max_target_positions", 1024) - 1)
        ratio = float(self.value("max_len_a", 0.0))
        if ratio == 0.0 and longest > 0:  # fairseq then ends all hypotheses with EOS
            constraints.append({"name": "max_length", "length": longest})
        return {
            "strategy": {
                "name": "beam",
                "beam": self.value("beam", 5),
                "length_penalty": {"name": "power", "alpha": alpha},
                # fairseq stops as soon as `beam` hypotheses are finished.
                "stop": "first_beam",
            },
            "constraints": constraints,
            "max_length_ratio": ratio,
            # fairseq's limit does not count EOS.
            "max_length_offset": longest + 1,
            "max_source_length": self.value("max_source_positions", 1024),
        }


def _plain(section: object) -> dict[str, Any]:
    """Return the keys and values of a section; empty if the section is not a mapping."""
    values = vars(section) if isinstance(section, Namespace) else section
    return (
        {key: values[key] for key in values if isinstance(key, str)}
        if isinstance(values, dict)
        else {}
    )

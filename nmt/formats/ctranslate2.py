"""Models for CTranslate2 (Klein et al. 2020), through its own ``TransformerSpec``.

The spec lists the layers and takes the weights under its own names; CTranslate2 writes both to
disk. Layers without a counterpart in the spec are written as equivalent layers: heads that share
keys and values become heads with equal keys and values, and DeepNorm's factor is divided out of the
sublayer, which the normalisation after the sublayer cancels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nmt.data.shortlist import SPECIAL, Shortlist
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.formats.exporting import TransformerFormat, export_formats, unsupported
from nmt.models.layers.attention import GroupedAttention, MultiHeadAttention
from nmt.models.layers.cache import TokenMixer
from nmt.models.layers.feed_forward import FeedForward, GatedFeedForward
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.models.transformer.multi_head import CrossAttention, SelfAttention
from nmt.models.transformer.positions import RelativeAttention, Rotary
from nmt.runs import LoadedModel
from nmt.runs.exports import (
    MAX_POSITIONS,
    QUANTIZATIONS,
    VOCABULARY_MAP,
    Stored,
    vocabularies,
)
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import directions_of

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "swish": "SWISH",
    "swiglu": "SWISH",
}
ADDED_POSITIONS = ("none", "sinusoidal", "learned")


@export_formats.register("ctranslate2")
@dataclass(frozen=True, kw_only=True)
class CTranslate2Format(TransformerFormat):
    """The directory that ``ctranslate2.Translator`` reads."""

    spells_text: ClassVar[bool] = False
    refusal: ClassVar[str] = "CTranslate2 cannot run a model with {}"
    precisions: ClassVar[Collection[str]] = tuple(QUANTIZATIONS)

    shortlist: bool = True
    """Whether to write the shortlist of a run that has one."""

    def use(self, loaded: LoadedModel) -> str:
        """Return a command."""
        source, target = directions_of(loaded.subwords, loaded.run.languages).trained[0]
        flags = f" -s {source} -t {target}" if loaded.subwords.directions else ""
        return f"```sh\nnmt translate --model .{flags} < input.txt > output.txt\n```\n"

    def search(self, search: dict[str, Any]) -> dict[str, Any]:
        """Return the run's settings, but with the only stop criterion of the engine."""
        strategy = search.get("strategy")
        if not isinstance(strategy, dict) or strategy.get("name") != "beam":
            return search
        return {**search, "strategy": {**strategy, "stop": "first_beam"}}

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write model.bin, config.json, the vocabularies and the vocabulary map."""
        specs = _import_specs()
        config, model = self.checked(loaded, stored)
        if self.shortlist and loaded.run.has_shortlist:
            text = vocabulary_map(loaded.run.shortlist, loaded.subwords)
            (directory / VOCABULARY_MAP).write_text(text, encoding="utf-8")
        spec = _empty_spec(specs, config, model)
        _fill(spec, model, config)
        _name_tokens(spec, loaded)
        # Refuses a layer without weights before anything is written.
        spec.validate()
        spec.optimize(quantization=QUANTIZATIONS[stored])
        spec.save(str(directory))

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield the parts of a model that CTranslate2 does not support, by their recipe names."""
        supported = {
            "feed_forward": ACTIVATIONS,
            "positions": (*ADDED_POSITIONS, "rotary", "relative"),
            "encoder_attention": ("full",),
            "decoder_attention": ("full",),
            "decoder_feed_forward": (True,),
        }
        yield from unsupported(config, supported)
        if config.attention.d_k != config.attention.d_v:
            # The specification has one width of heads.
            yield "d_k other than d_v"


def vocabulary_map(shortlist: Shortlist, subwords: Subwords) -> str:
    """Return a shortlist as CTranslate2's vocabulary map.

    Each line has a source token, a tab, and target tokens with spaces between them. The target
    tokens of the empty source token are on every list.

    Raises:
        NmtError: a token is empty or has white space, which the map cannot hold.
    """
    source, target = vocabularies(subwords)
    for token in (*source, *target):
        if not token or re.search(r"[ \t\r\n]", token):
            raise NmtError(
                f"CTranslate2's {VOCABULARY_MAP} cannot hold the piece {token!r} of the shortlist; "
                "translate with nmt itself"
            )
    rows = shortlist.candidates.tolist()
    # CTranslate2 looks up the tokens of a source without its EOS.
    always = {*SPECIAL, *shortlist.frequent.tolist(), *rows[EOS]}
    lists = {"": sorted(always)}
    for id_, row in enumerate(rows):
        # Translations copy names and numbers.
        candidates = [*row, id_] if shortlist.origin.shared_vocabulary else row
        lists[source[id_]] = [target_id for target_id in candidates if target_id not in always]
    return "".join(
        f"{token}\t{' '.join(target[id_] for id_ in ids)}\n" for token, ids in lists.items()
    )


def _import_specs() -> Any:
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError:
        raise NmtError(
            "exporting to ctranslate2 needs CTranslate2; pip install ctranslate2"
        ) from None
    return transformer_spec


def _empty_spec(specs: Any, config: TransformerConfig, model: Transformer) -> Any:
    """Return the spec of the layers, without weights."""
    activation = ACTIVATIONS[config.feed_forward.name]
    shape: dict[str, Any] = {
        "num_heads": config.heads,
        "pre_norm": config.residual == "pre_norm",
        "activation": getattr(specs.common_spec.Activation, activation),
        "ffn_glu": config.feed_forward.name == "swiglu",
        "rms_norm": config.norm == "rms_norm",
        "relative_position": config.positions.name == "relative",
        "head_dim": config.attention.d_k,
    }
    if isinstance(config.positions, Rotary):
        shape["rotary_dim"] = config.attention.d_k
        shape["rotary_base"] = config.positions.base
    # CTranslate2 averages the first heads of a layer.
    aligned = {
        # Counted from 0 there.
        "alignment_layer": model.alignment_layer - 1,
        "alignment_heads": config.heads if model.alignment_head is None else 1,
    }
    return specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, **shape),
        specs.TransformerDecoderSpec(config.decoder_layers, **shape, **aligned),
    )


def _fill(spec: Any, model: Transformer, config: TransformerConfig) -> None:
    """Copy the model's weights into the spec."""
    for layer_spec, encoder_layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _fill_self(layer_spec.self_attention, encoder_layer.attention)
        _fill_end(layer_spec.self_attention, encoder_layer.attention_norm, encoder_layer.alpha)
        _fill_feed_forward(layer_spec.ffn, encoder_layer.feed_forward)
        _fill_end(layer_spec.ffn, encoder_layer.feed_forward_norm, encoder_layer.alpha)
    decoder = zip(spec.decoder.layer, model.decoder, strict=True)
    for number, (layer_spec, layer) in enumerate(decoder, start=1):
        _fill_self(layer_spec.self_attention, layer.attention)
        _fill_end(layer_spec.self_attention, layer.attention_norm, layer.alpha)
        head = model.alignment_head if number == model.alignment_layer else None
        _fill_cross(layer_spec.attention, layer.cross, (head or 1) - 1)
        _fill_end(layer_spec.attention, layer.cross_norm, layer.alpha)
        assert layer.feed_forward is not None
        assert layer.feed_forward_norm is not None
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward)
        _fill_end(layer_spec.ffn, layer.feed_forward_norm, layer.alpha)
    _set(spec.encoder.embeddings[0], weight=model.source_embedding.weight)
    _set(spec.decoder.embeddings, weight=model.target_embedding.weight)
    _fill_linear(spec.decoder.projection, model.output)
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = config.scale_embeddings
    for stack, end, positions in (
        (spec.encoder, model.encoder_end, model.source_positions),
        (spec.decoder, model.decoder_end, model.positions),
    ):
        if config.residual == "pre_norm":
            _fill_norm(stack.layer_norm, end)
        if config.positions.name in ADDED_POSITIONS:
            table = positions(0, MAX_POSITIONS, torch.device("cpu"))
            # Without positions this is a table of zeros.
            _set(stack.position_encodings, encodings=table.expand(MAX_POSITIONS, config.d_model))
    spec.config.layer_norm_epsilon = config.norm_epsilon


def _fill_self(spec: Any, attention: TokenMixer) -> None:
    assert isinstance(attention, SelfAttention)
    _fill_heads(spec.linear[0], attention.project_in, attention)
    _fill_linear(spec.linear[1], attention.output)
    attention_fn = attention.attention_fn
    if isinstance(attention_fn, GroupedAttention):
        attention_fn = attention_fn.inner
    if isinstance(attention_fn, RelativeAttention):
        _set(
            spec,
            relative_position_keys=attention_fn.keys,
            relative_position_values=attention_fn.values,
        )


def _fill_cross(spec: Any, cross: CrossAttention, head: int) -> None:
    """Copy the attention to the source, with one head moved to the first place."""
    _fill_linear(spec.linear[0], cross.project_query)
    _fill_heads(spec.linear[1], cross.project_memory, cross, first=1)
    _fill_linear(spec.linear[2], cross.output)
    if head == 0:
        return
    heads = cross.qkv_heads[0]
    order = [head, *(other for other in range(heads) if other != head)]
    for linear, parts in ((spec.linear[0], 1), (spec.linear[1], 2)):
        linear.weight = _reordered(linear.weight, order, parts)
        if linear.has_bias():
            linear.bias = _reordered(linear.bias, order, parts)
    # The columns of the output's weight belong to the heads, not the rows.
    spec.linear[2].weight = _reordered(spec.linear[2].weight.T, order, 1).T.copy()


def _reordered(rows: NDArray[np.float32], order: list[int], parts: int) -> NDArray[np.float32]:
    """Return the rows of each part with its heads in another order."""
    by_head = rows.reshape(parts, len(order), -1, *rows.shape[1:])
    reordered: NDArray[np.float32] = by_head[:, order].reshape(rows.shape).copy()
    return reordered


def _fill_heads(
    spec: Any, linear: nn.Linear, attention: MultiHeadAttention, first: int = 0
) -> None:
    """Copy a projection of queries, keys and values, from part `first` on, with all heads each."""
    sizes, counts = attention.qkv_sizes[first:], attention.qkv_heads[first:]
    heads = attention.qkv_heads[0]

    def with_all_heads(rows: Tensor) -> Tensor:
        parts = zip(torch.split(rows, list(sizes)), counts, strict=True)
        by_head = [part.view(count, -1, *rows.shape[1:]) for part, count in parts]
        full = [part.repeat_interleave(heads // len(part), dim=0) for part in by_head]
        return torch.cat([part.flatten(0, 1) for part in full])

    _set(spec, weight=with_all_heads(linear.weight))
    if linear.bias is not None:
        _set(spec, bias=with_all_heads(linear.bias))


def _fill_feed_forward(spec: Any, layer: nn.Module) -> None:
    if isinstance(layer, GatedFeedForward):
        # The order in which `GatedFeedForward` takes them apart.
        gate, linear = layer.inner.weight.chunk(2)
        _set(spec.linear_0, weight=gate)
        _set(spec.linear_0_noact, weight=linear)
    else:
        assert isinstance(layer, FeedForward)
        _fill_linear(spec.linear_0, layer.inner)
    _fill_linear(spec.linear_1, layer.outer)


def _fill_end(spec: Any, norm: nn.Module, alpha: float | None) -> None:
    """Copy the normalisation of a sublayer whose weights are in the spec already."""
    _fill_norm(spec.layer_norm, norm)
    if alpha is not None:  # norm(alpha x + f) is norm(x + f / alpha)
        last = spec.linear_1 if hasattr(spec, "linear_1") else spec.linear[-1]
        last.weight = last.weight / alpha
        if last.has_bias():
            last.bias = last.bias / alpha


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    for name, weight in norm.named_parameters():
        _set(spec, **{{"weight": "gamma", "bias": "beta"}[name]: weight})


def _fill_linear(spec: Any, linear: nn.Linear) -> None:
    _set(spec, weight=linear.weight)
    if linear.bias is not None:
        _set(spec, bias=linear.bias)


def _set(spec: Any, **weights: Tensor) -> None:
    for name, weight in weights.items():
        # In float32, from which the specification itself makes other types.
        setattr(spec, name, weight.detach().float().contiguous().numpy())


def _name_tokens(spec: Any, loaded: LoadedModel) -> None:
    """Register the vocabularies, and have CTranslate2 add the EOS to sources."""
    source, target = vocabularies(loaded.subwords)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    # CTranslate2 adds none by itself, and every source in training had one.
    spec.config.add_source_eos = True

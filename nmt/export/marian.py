"""Models for Marian: ``model.npz`` with its configuration inside, vocabularies, ``decoder.yml``.

Marian's decoder begins with a vector of zeros in the place of the embedding of BOS. An export
subtracts that embedding from all embeddings of the target side. If the output layer is tied to
them, the logits of a step change by the same number, and the probabilities do not. The biases of
the first layer add the embedding again.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, UNK, is_excluded
from nmt.export.base import Stored, export_formats
from nmt.export.marian_names import (
    BIAS,
    CONFIGURATION,
    EMBEDDINGS,
    OUTPUT,
    PATTERNS,
    RESIDUALS,
    layer_weights,
)
from nmt.export.transformer_format import (
    TransformerFormat,
    constraints_of,
    distinct,
    large_epsilon,
    unsupported,
    unsupported_widths,
)
from nmt.models.transformer import Transformer, TransformerConfig
from nmt.preprocess.model_pieces import reordered
from nmt.recipe.config import build
from nmt.runs import LoadedModel, weights_of
from nmt.search import Strategy
from nmt.search.ranking import length_penalties

SIDES = ("source", "target")

VERSION = "v1.12.0"
"""Version of Marian that the configuration names."""


@export_formats.register("marian")
@dataclass(frozen=True, kw_only=True)
class MarianFormat(TransformerFormat):
    """The files that marian-decoder and marian-scorer read."""

    refusal: ClassVar[str] = "Marian has no counterpart of {}"
    reads_tags: ClassVar[bool] = False

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write the weights with their configuration, the vocabularies and the search."""
        config, model = self.checked(loaded, stored)
        weights = weights_of(model)
        bias = weights.get("output.bias")
        biases = {token: 0.0 if bias is None else bias[token].item() for token in (PAD, BOS)}
        extra = [token for token, value in biases.items() if not is_excluded(value)]
        orders = [
            [EOS, UNK, *range(EOS + 1, size), *extra]
            for size in (loaded.subwords.source_size, loaded.subwords.target_size)
        ]
        arrays = _arrays(config, _beginning_with_zeros(config, weights), orders)
        settings = _settings(config, [len(order) for order in orders])
        _write_npz(directory / "model.npz", arrays, settings)
        search = {
            "relative-paths": True,
            "models": ["model.npz"],
            "vocabs": _write_vocabularies(loaded, orders, directory),
            **_search(loaded),
        }
        text = yaml.safe_dump(search, sort_keys=False)
        (directory / "model.npz.decoder.yml").write_text(text, encoding="utf-8")

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield what Marian lacks, by the names of the recipe."""
        parts = {
            "positions": ("sinusoidal",),
            "feed_forward": ("relu", "swish"),
            "encoder_attention": ("full",),
            "decoder_attention": PATTERNS.values(),
        }
        yield from unsupported(config, parts)
        if offset := getattr(config.positions, "offset", 0):
            yield f"positions {config.positions.name} with offset {offset}"
        settings: dict[str, Collection[Any]] = {
            "sinusoids": ("concatenated",),
            "residual": RESIDUALS.values(),
            "norm": ("layer_norm",),
            "scale_embeddings": (True,),
            "attention_bias": (True,),
            "decoder_feed_forward": (True,),
            "key_value_heads": (None, config.heads),
        }
        yield from unsupported(config, settings)
        yield from large_epsilon(config)
        yield from unsupported_widths(config)
        yield from _other_weights(config, weights_of(model))


def _other_weights(config: TransformerConfig, weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the weights for which Marian has no place."""
    pattern = config.decoder_attention.name
    if pattern == "average" and any(gate.any() for gate in _other_gates(config, weights)):
        yield "gates of decoder_attention average that see both the input and the mean"
    if (config.residual, pattern) != ("post_norm", "full") and weights["target_embedding.weight"][
        BOS
    ].any():
        yield (
            f"an embedding of BOS other than zeros with residual {config.residual} and "
            f"decoder_attention {pattern}"
        )


def _other_gates(config: TransformerConfig, weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Yield the weights of gates of average attention for which Marian has no place."""
    width = config.d_model
    for number in range(config.decoder_layers):
        gate = weights[f"decoder.{number}.attention.gate.weight"]
        yield from (gate[:width, width:], gate[width:, :width])


def _beginning_with_zeros(
    config: TransformerConfig, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the weights of the same model whose embedding of BOS is zero.

    Post-norm layers with self-attention alone can add a vector to their input, by their biases.
    """
    start = weights["target_embedding.weight"][BOS]
    changed = dict(weights)
    if not start.any():
        return changed
    changed["target_embedding.weight"] = weights["target_embedding.weight"] - start
    input_start = math.sqrt(config.d_model) * start
    for stack in ("encoder", "decoder") if config.tied_embeddings == "all" else ("decoder",):
        project, output = f"{stack}.0.attention.project_in", f"{stack}.0.attention.attend.output"
        added = weights[f"{project}.weight"] @ input_start
        changed[f"{project}.bias"] = weights[f"{project}.bias"] + added
        changed[f"{output}.bias"] = weights[f"{output}.bias"] + input_start
    return changed


def _arrays(
    config: TransformerConfig, weights: Mapping[str, Tensor], orders: list[list[int]]
) -> dict[str, Tensor]:
    """Return the weights by Marian's names, with the rows of tokens in these orders."""
    source, target = orders
    if config.tied_embeddings == "all":
        arrays = {EMBEDDINGS["shared"]: weights["target_embedding.weight"][target]}
    else:
        arrays = {
            EMBEDDINGS["source"]: weights["source_embedding.weight"][source],
            EMBEDDINGS["target"]: weights["target_embedding.weight"][target],
        }
    if config.tied_embeddings == "none":
        arrays[OUTPUT] = weights["output.weight"][target].t()
    bias = weights.get("output.bias", torch.zeros(len(weights["target_embedding.weight"])))
    arrays[BIAS] = bias[target][None]
    for name, theirs in layer_weights(config):
        parts = weights[name].chunk(len(theirs))
        if name.endswith("gate.weight"):
            parts = (parts[0][:, : config.d_model], parts[1][:, config.d_model :])
        for their_name, part in zip(theirs, parts, strict=True):
            arrays[their_name] = part.t() if part.dim() == 2 else part[None]
    return arrays


def _settings(config: TransformerConfig, sizes: list[int]) -> dict[str, Any]:
    """Return the configuration inside the model."""
    [operations] = [key for key, name in RESIDUALS.items() if name == config.residual]
    preprocess, postprocess, top = operations
    [pattern] = [key for key, name in PATTERNS.items() if name == config.decoder_attention.name]
    settings = {
        "type": "transformer",
        "dim-vocabs": sizes,
        "dim-emb": config.d_model,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "dec-cell": "ssru",
        "tied-embeddings": config.tied_embeddings == "decoder",
        "tied-embeddings-all": config.tied_embeddings == "all",
        "tied-embeddings-src": False,
        "transformer-heads": config.heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": config.feed_forward.name,
        "transformer-preprocess": preprocess,
        "transformer-postprocess": f"d{postprocess}",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": top,
        "transformer-decoder-autoreg": pattern,
        "transformer-guided-alignment-layer": str(config.resolved().alignment_layer),
        "version": VERSION,
    }
    if pattern == "average-attention":
        average = config.decoder_attention
        hidden = getattr(average, "d_hidden", None) or 4 * config.d_model
        settings |= {"transformer-dim-aan": hidden, "transformer-aan-depth": 2}
        settings["transformer-aan-activation"] = getattr(average, "activation", "relu")
    return settings


def _write_npz(path: Path, arrays: Mapping[str, Tensor], settings: dict[str, Any]) -> None:
    """Write arrays and a configuration; numpy's own writer uses extensions that Marian lacks."""
    text = yaml.safe_dump(settings, sort_keys=False).encode() + b"\0"
    members = {name: tensor.float().contiguous().numpy() for name, tensor in arrays.items()}
    members[CONFIGURATION] = np.frombuffer(text, np.int8)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in members.items():
            file = io.BytesIO()
            np.lib.format.write_array(file, array, (1, 0))
            archive.writestr(f"{name}.npy", file.getbuffer())


def _write_vocabularies(loaded: LoadedModel, orders: list[list[int]], directory: Path) -> list[str]:
    """Write the vocabularies and return their names, those of source and target.

    A SentencePiece model is the vocabulary, with its pieces in the order of the vectors. Where its
    pieces are others than those of the model, the vocabulary is a list beside it.
    """
    subwords, names = loaded.subwords, []
    readers = (subwords.source_pieces, subwords.target_pieces)
    for side, read, order, model in zip(SIDES, readers, orders, subwords.models, strict=True):
        pieces = distinct(read(order), order)
        vocabulary = reordered(model, pieces)
        (directory / f"{side}.spm").write_bytes(vocabulary or model)
        names.append(f"{side}.spm" if vocabulary else f"{side}.vocab.yml")
        if vocabulary is None:
            (directory / names[-1]).write_text(vocabulary_list(pieces), encoding="utf-8")
    return names


def vocabulary_list(pieces: Iterable[str]) -> str:
    """Return pieces as the YAML of a vocabulary, in the order of their ids.

    Emoji stay as they are: JSON writes two halves of each, which YAML does not join.
    """
    escaped = (
        "".join(c if ord(c) > 0xFFFF else json.dumps(c)[1:-1] for c in piece) for piece in pieces
    )
    return "".join(f'"{piece}": {token}\n' for token, piece in enumerate(escaped))


def _search(loaded: LoadedModel) -> dict[str, Any]:
    """Return the settings of marian-decoder that are nearest to those of the recipe."""
    search = loaded.recipe.get("search") or {}
    strategy = build(Strategy, search.get("strategy", "beam"), "search.strategy")  # type: ignore[type-abstract]
    penalty = getattr(strategy, "length_penalty", length_penalties["none"])
    forbidden, _ = constraints_of(search)
    return {
        "beam-size": getattr(strategy, "beam", 1),
        "normalize": penalty.nearest_power,
        "max-length-factor": max(3.0, search.get("max_length_ratio", 1.0)),
        "allow-unk": UNK not in forbidden,
    }

"""Models for Marian: ``model.npz`` with its configuration inside, vocabularies, ``decoder.yml``.

Imports also read the packages of OPUS-MT and students of Bergamot, unless their weights are
quantised.
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
from nmt.errors import NmtError
from nmt.formats.exporting import (
    TransformerFormat,
    constraints_of,
    distinct,
    export_formats,
    large_epsilon,
    unsupported,
    unsupported_widths,
)
from nmt.formats.importing import (
    Imported,
    ImportFormat,
    ReorderedVocabulary,
    concatenate,
    import_formats,
    read_sentencepiece,
)
from nmt.formats.marian_files import Array, read_binary, read_pieces, read_text
from nmt.io.documents import open_regular
from nmt.models.base import architectures
from nmt.models.layers.basic import Placement
from nmt.models.layers.feed_forward import feed_forwards
from nmt.models.transformer.model import Transformer, TransformerConfig, begins_with_zeros
from nmt.models.transformer.patterns import AttentionPattern, patterns
from nmt.models.transformer.recurrences import SSRUPart
from nmt.recipe.config import build, parse_yaml
from nmt.runs import LoadedModel, weights_of
from nmt.runs.exports import Stored
from nmt.search import Strategy
from nmt.search.ranking import length_penalties
from nmt.subwords.model_pieces import reordered
from nmt.subwords.segmenters import load_processor
from nmt.subwords.subwords import Subwords

SIDES = ("source", "target")

VERSION = "v1.12.0"
"""Version of Marian that the configuration names."""


RESIDUALS: dict[tuple[str, ...], Placement] = {
    ("", "an", ""): "post_norm",
    ("n", "a", "n"): "pre_norm",
}
"""Operations before and after a sublayer, and after a stack, without dropout."""

PATTERNS = {"self-attention": "full", "average-attention": "average", "rnn": "ssru"}
"""Values of ``transformer-decoder-autoreg``, and this toolkit's ``decoder_attention``."""


@export_formats.register("marian")
@dataclass(frozen=True, kw_only=True)
class MarianExport(TransformerFormat):
    """The files that marian-decoder and marian-scorer read."""

    refusal: ClassVar[str] = "Marian has no counterpart of {}"
    reads_tags: ClassVar[bool] = False
    known: ClassVar[Mapping[str, Collection[Any]]] = {
        "positions": ("sinusoidal",),
        "feed_forward": ("relu", "swish"),
        "encoder_attention": ("full",),
        "decoder_attention": PATTERNS.values(),
        "sinusoids": ("concatenated",),
        "residual": RESIDUALS.values(),
        "norm": ("layer_norm",),
        "scale_embeddings": (True,),
        "attention_bias": (True,),
        "decoder_feed_forward": (True,),
    }
    """Settings of a model that the engine can run, or names of their parts."""

    def use(self, loaded: LoadedModel) -> str:
        """Return a command."""
        return "```sh\nmarian-decoder -c model.npz.decoder.yml < input.txt > output.txt\n```\n"

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write the weights with their configuration, the vocabularies and the search."""
        config, model = self.checked(loaded, stored)
        orders = token_orders(loaded)
        arrays = exported_arrays(config, weights_of(model), orders)
        settings = model_settings(config, [len(order) for order in orders])
        _write_npz(directory / "model.npz", arrays, settings)
        search = {
            "relative-paths": True,
            "models": ["model.npz"],
            "vocabs": _write_vocabularies(loaded, orders, directory),
            **_exported_search(loaded),
        }
        text = yaml.safe_dump(search, sort_keys=False)
        (directory / "model.npz.decoder.yml").write_text(text, encoding="utf-8")

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield what Marian lacks, by the names of the recipe."""
        yield from unsupported(config, {**self.known, "key_value_heads": (None, config.heads)})
        if offset := getattr(config.positions, "offset", 0):
            yield f"positions {config.positions.name} with offset {offset}"
        yield from large_epsilon(config)
        yield from unsupported_widths(config)
        yield from _other_weights(config, weights_of(model))


def _other_weights(config: TransformerConfig, weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the weights for which Marian has no place."""
    pattern = config.decoder_attention.name
    if pattern == "average" and any(gate.any() for gate in _other_gates(config, weights)):
        yield "gates of decoder_attention average that see both the input and the mean"
    if _first_input(config, weights).any():
        if pattern != "full":
            yield f"decoder_attention {pattern} without zero_bos"
        elif config.residual != "post_norm":
            yield f"an embedding of BOS other than zeros with residual {config.residual}"


def _other_gates(config: TransformerConfig, weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Yield the weights of gates of average attention for which Marian has no place."""
    width = config.d_model
    for number in range(config.decoder_layers):
        gate = weights[f"decoder.{number}.attention.gate.weight"]
        yield from (gate[:width, width:], gate[width:, :width])


def _first_input(config: TransformerConfig, weights: Mapping[str, Tensor]) -> Tensor:
    """Return the embedding [D] with which the decoder begins."""
    row = weights["target_embedding.weight"][BOS]
    return torch.zeros_like(row) if begins_with_zeros(config) else row


def _beginning_with_zeros(
    config: TransformerConfig, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the weights of the same model with an embedding of BOS that is zero.

    Marian's decoder begins with a vector of zeros instead of the embedding of BOS. So the export
    subtracts this embedding from all embeddings of the target side. If the output layer is tied to
    the embeddings, the logits of a step change by the same number, and the probabilities stay the
    same. The biases of the first layer add the embedding again.

    Post-norm layers with self-attention alone can add a vector to their input, by their biases.
    """
    start = _first_input(config, weights)
    changed = dict(weights)
    if not start.any():
        return changed
    changed["target_embedding.weight"] = weights["target_embedding.weight"] - start
    # The first layer reads embeddings times sqrt(d_model) (section 3.4 of the paper).
    input_start = math.sqrt(config.d_model) * start
    # A table that all share is the encoder's, too.
    for stack in ("encoder", "decoder") if config.tied_embeddings == "all" else ("decoder",):
        project, output = f"{stack}.0.attention.project_in", f"{stack}.0.attention.output"
        added = weights[f"{project}.weight"] @ input_start
        changed[f"{project}.bias"] = weights[f"{project}.bias"] + added
        # The residual connection passes on the embedding, too.
        changed[f"{output}.bias"] = weights[f"{output}.bias"] + input_start
    return changed


def token_orders(loaded: LoadedModel) -> list[list[int]]:
    """Return the ids of the source and of the target in the order of Marian's ids."""
    bias = weights_of(loaded.model).get("output.bias")
    # Marian has no such ids; a model that predicts them keeps their rows at the end.
    biases = {token: 0.0 if bias is None else bias[token].item() for token in (PAD, BOS)}
    extra = [token for token, value in biases.items() if not is_excluded(value)]
    return [
        # In Marian 0 ends a sentence and 1 is unknown.
        [EOS, UNK, *range(EOS + 1, size), *extra]
        for size in (loaded.subwords.source_size, loaded.subwords.target_size)
    ]


def exported_arrays(
    config: TransformerConfig, weights: Mapping[str, Tensor], orders: list[list[int]]
) -> dict[str, Tensor]:
    """Return the weights by Marian's names, with the rows of tokens in these orders."""
    weights = _beginning_with_zeros(config, weights)
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
    # Marian stores a vector as a matrix of one row.
    arrays[BIAS] = bias[target][None]
    for name, theirs in layer_weights(config):
        parts = weights[name].chunk(len(theirs))
        # Each of Marian's gates reads one input; other weights were refused above.
        if name.endswith("gate.weight"):
            parts = (parts[0][:, : config.d_model], parts[1][:, config.d_model :])
        for their_name, part in zip(theirs, parts, strict=True):
            # Marian computes x W, torch x W^T; Marian's vectors are rows.
            arrays[their_name] = part.t() if part.dim() == 2 else part[None]
    return arrays


def model_settings(config: TransformerConfig, sizes: list[int]) -> dict[str, Any]:
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
    # Marian reads the text up to a zero byte.
    text = yaml.safe_dump(settings, sort_keys=False).encode() + b"\0"
    members = {name: tensor.float().contiguous().numpy() for name, tensor in arrays.items()}
    members[CONFIGURATION] = np.frombuffer(text, np.int8)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in members.items():
            file = io.BytesIO()
            # Version 1.0 of the format, which Marian's reader knows.
            np.lib.format.write_array(file, array, (1, 0))
            archive.writestr(f"{name}.npy", file.getbuffer())


def _write_vocabularies(loaded: LoadedModel, orders: list[list[int]], directory: Path) -> list[str]:
    """Write the vocabularies of source and target, and return their names.

    A SentencePiece model is the vocabulary, with its pieces in the order of the vectors. If its
    pieces differ from the pieces of the model, the vocabulary is a list in a second file.
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


def _exported_search(loaded: LoadedModel) -> dict[str, Any]:
    """Return the settings of marian-decoder that are nearest to the settings of the recipe."""
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


Names = Iterator[tuple[str, list[str]]]
"""Names of weights, and the foreign names whose tensors, concatenated, make them up."""

BIAS = "decoder_ff_logit_out_b"

OUTPUT = "decoder_ff_logit_out_W"

EMBEDDINGS = {"source": "encoder_Wemb", "target": "decoder_Wemb", "shared": "Wemb"}

CONFIGURATION = "special:model.yml"
"""Name of the array that holds the configuration."""


def _attention(prefix: str, part: str, projections: dict[str, str]) -> Names:
    for name, letters in projections.items():
        for kind, symbol in (("weight", "W"), ("bias", "b")):
            yield f"{part}.{name}.{kind}", [f"{prefix}_{symbol}{letter}" for letter in letters]


def _norm(prefix: str, part: str, suffix: str) -> Names:
    for kind, symbol in (("weight", "scale"), ("bias", "bias")):
        yield f"{part}.{kind}", [f"{prefix}_ln_{symbol}{suffix}"]


def _feed_forward(prefix: str) -> Names:
    for number, name in (("1", "inner"), ("2", "outer")):
        for kind, symbol in (("weight", "W"), ("bias", "b")):
            yield f"feed_forward.{name}.{kind}", [f"{prefix}_{symbol}{number}"]


def _self_attention(prefix: str, pattern: str, suffix: str) -> Names:
    """Yield the weights of the self-attention, average attention or recurrence of a layer."""
    if pattern == "ssru":
        yield "attention.project_in.weight", [f"{prefix}_rnn_Wf", f"{prefix}_rnn_W"]
        yield "attention.forget_bias", [f"{prefix}_rnn_bf"]
        norm = f"{prefix}_rnn" if suffix else f"{prefix}_rnn_ffn"
    elif pattern == "average":
        for ours, theirs in (("inner", "1"), ("outer", "2")):
            yield f"attention.{ours}.weight", [f"{prefix}_aan_W{theirs}"]
            yield f"attention.{ours}.bias", [f"{prefix}_aan_b{theirs}"]
        yield "attention.gate.weight", [f"{prefix}_aan_Wi", f"{prefix}_aan_Wf"]
        yield "attention.gate.bias", [f"{prefix}_aan_bi", f"{prefix}_aan_bf"]
        norm = f"{prefix}_aan_ffn"
    else:
        names = {"project_in": "qkv", "output": "o"}
        yield from _attention(f"{prefix}_self", "attention", names)
        norm = f"{prefix}_self_Wo"
    yield from _norm(norm, "attention_norm", suffix)


def _layer(prefix: str, pattern: str, is_decoder: bool, suffix: str) -> Names:
    yield from _self_attention(prefix, pattern, suffix)
    if is_decoder:
        context = {"project_query": "q", "project_memory": "kv", "output": "o"}
        yield from _attention(f"{prefix}_context", "cross", context)
        yield from _norm(f"{prefix}_context_Wo", "cross_norm", suffix)
    yield from _feed_forward(f"{prefix}_ffn")
    yield from _norm(f"{prefix}_ffn_ffn", "feed_forward_norm", suffix)


def layer_weights(config: TransformerConfig) -> Names:
    """Yield the name of each weight of the layers, and the foreign names to concatenate."""
    is_pre_norm = config.residual == "pre_norm"
    suffix = "_pre" if is_pre_norm else ""
    for stack in ("encoder", "decoder"):
        pattern = getattr(config, f"{stack}_attention").name
        for number in range(getattr(config, f"{stack}_layers")):
            prefix = f"{stack}_l{number + 1}"
            for ours, theirs in _layer(prefix, pattern, stack == "decoder", suffix):
                yield f"{stack}.{number}.{ours}", theirs
        if is_pre_norm:
            yield from _norm(f"{stack}_top", f"{stack}_end", "")


END, UNKNOWN = 0, 1
"""Marian's special ids. Its decoder begins with a vector of zeros, which has no id."""

EXPECTED: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-decoder-autoreg": ("self-attention", "average-attention", "rnn"),
    "transformer-aan-depth": (2,),
    "transformer-aan-activation": ("relu", "swish"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "input-types": ([],),
    "transformer-tied-layers": ([],),
    **{
        key: (False, 0)
        for key in (
            "factors-dim-emb",
            "lemma-dim-emb",
            "right-left",
            "skip",
            "tied-embeddings-src",
            "transformer-aan-nogate",
            "transformer-disable-position-embeddings",
            "transformer-no-affine",
            "transformer-no-bias",
            "transformer-no-projection",
            "transformer-pool",
            "transformer-rnn-projection",
            "ulr",
        )
    },
}
"""Supported values of the configuration; a key may also be absent."""


@import_formats.register("marian")
@dataclass(frozen=True, kw_only=True)
class MarianImport(ImportFormat):
    """A directory with ``decoder.yml`` and its files, or with one model and ``vocab.spm``."""

    def recognises(self, source: Path) -> bool:
        """Return whether there is a file of arrays."""
        return bool(_arrays(source))

    def read(self, source: Path) -> Imported:
        """Read the model that the decoder's configuration names, and its vocabularies."""
        settings, decoder = _decoder(source)
        path = _model_path(source, decoder)
        arrays = (read_binary if path.suffix == ".bin" else _read_npz)(path)
        if CONFIGURATION not in arrays:
            raise NmtError(f"{path}: holds no configuration, {CONFIGURATION}")
        # The text ends at its first zero byte.
        text = arrays.pop(CONFIGURATION).tobytes().partition(b"\0")[0].decode("utf-8", "replace")
        values = parse_yaml(text, str(path))
        if not isinstance(values, dict):
            raise NmtError(f"{path}: its configuration has no keys and values")
        tensors = {
            # Taken out one by one, so that memory does not hold two models.
            name: torch.from_numpy(arrays.pop(name).astype(np.float32, copy=False))
            for name in [*arrays]
        }
        model = _Model(path, values, tensors)
        config = model.config()
        orders, models = _vocabularies(source, decoder, model)
        weights = model.weights(config, *orders)
        is_shared = orders[0] is orders[1]
        subwords = Subwords(
            models[0],
            None if models[0] == models[1] and is_shared else models[1],
            vocabularies=[order.vocabulary for order in orders[: 1 if is_shared else 2]],
        )
        search = _search(settings, decoder)
        return Imported(config, weights, subwords, search, settings, (None, None), (path,))


class _Model:
    """A configuration of Marian and its weights."""

    def __init__(self, path: Path, values: dict[Any, Any], tensors: dict[str, Tensor]) -> None:
        self.path, self.values, self.tensors = path, values, tensors
        # Marian may give the decoder another width; a model here has one width for both sides.
        width = "transformer-decoder-dim-ffn", (False, 0, values.get("transformer-dim-ffn"))
        for key, expected in [*EXPECTED.items(), width]:
            if key in values and values[key] not in expected:
                raise NmtError(f"{path}: nmt has no counterpart of {key}: {values[key]}")
        operations = [
            # d stands for dropout, which translation does not use.
            str(values.get(f"transformer-{name}", default)).replace("d", "")
            for name, default in (
                ("preprocess", ""),
                ("postprocess", "dan"),
                ("postprocess-top", ""),
            )
        ]
        if tuple(operations) not in RESIDUALS:
            shown = ", ".join(repr(names) for names in operations)
            raise NmtError(
                f"{path}: nmt has no counterpart of transformer-preprocess, -postprocess and "
                f"-postprocess-top {shown}"
            )
        self.residual = RESIDUALS[tuple(operations)]
        self.pattern = PATTERNS[values.get("transformer-decoder-autoreg", "self-attention")]
        if self.pattern == "ssru" and values.get("dec-cell") != "ssru":
            raise NmtError(f"{path}: nmt has no counterpart of dec-cell: {values.get('dec-cell')}")
        self.tied = "decoder" if values.get("tied-embeddings") is True else "none"
        if values.get("tied-embeddings-all") is True:
            self.tied = "all"

    def _size(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int or value < 1:
            raise NmtError(f"{self.path}: {key}: expected a number from 1, not {value!r}")
        return value

    def config(self) -> TransformerConfig:
        """Return the recipe's section ``model``."""
        try:
            return TransformerConfig(
                arch=architectures["transformer_base"].arch,
                encoder_layers=self._size("enc-depth"),
                decoder_layers=self._size("dec-depth"),
                d_model=self._size("dim-emb"),
                d_ff=self._size("transformer-dim-ffn"),
                heads=self._size("transformer-heads"),
                tied_embeddings=self.tied,  # type: ignore[arg-type]
                output_bias=True,
                sinusoids="concatenated",
                feed_forward=feed_forwards[self.values.get("transformer-ffn-activation", "swish")],
                # Marian's constant.
                norm_epsilon=1e-9,
                residual=self.residual,
                decoder_attention=self._decoder_attention(),
                alignment_layer=self._alignment_layer(),
                alignment_head=1,
            )
        except ValueError as error:
            raise NmtError(f"{self.path}: {error}") from None

    def _alignment_layer(self) -> int:
        """Return the layer whose first head gives Marian's alignments."""
        key = "transformer-guided-alignment-layer"
        value = str(self.values.get(key, "last"))
        if value == "last":
            return self._size("dec-depth")
        if not value.isdecimal():
            raise NmtError(f"{self.path}: {key}: expected last or a number from 1, not {value!r}")
        return int(value)

    def _decoder_attention(self) -> AttentionPattern:
        if self.pattern == "full":
            return patterns[self.pattern]
        if self.pattern == "ssru":
            return SSRUPart(name="ssru", zero_bos=True)
        activation = self.values.get("transformer-aan-activation", "swish")
        part = {"name": "average", "d_hidden": self._size("transformer-dim-aan"), "zero_bos": True}
        return build(AttentionPattern, {**part, "activation": activation}, "decoder_attention")  # type: ignore[type-abstract]

    def _take(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise NmtError(f"{self.path}: has no tensor {name}")
        return self.tensors.pop(name)

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of the vocabularies, by the tables of vectors."""
        names = ["shared"] * 2 if self.tied == "all" else ["source", "target"]
        tables = [self.tensors.get(EMBEDDINGS[name]) for name in names]
        for name, table in zip(names, tables, strict=True):
            if table is None or table.dim() != 2 or table.shape[1] != self._size("dim-emb"):
                raise NmtError(f"{self.path}: has no table {EMBEDDINGS[name]} of the width dim-emb")
        return len(tables[0]), len(tables[1])  # type: ignore[arg-type]

    def weights(
        self, config: TransformerConfig, source: ReorderedVocabulary, target: ReorderedVocabulary
    ) -> dict[str, Tensor]:
        """Return all weights by this toolkit's names; an unknown weight is an error."""
        target_size = self.sizes()[1]
        if self.tied == "all":
            tables = {"target_embedding": target.reorder(self._take(EMBEDDINGS["shared"]))}
        else:
            tables = {
                "source_embedding": source.reorder(self._take(EMBEDDINGS["source"])),
                "target_embedding": target.reorder(self._take(EMBEDDINGS["target"])),
            }
        if self.tied == "none":
            output = self._take(OUTPUT)
            if output.dim() != 2 or output.shape[1] != target_size:
                raise NmtError(f"{self.path}: {OUTPUT} and {EMBEDDINGS['target']} differ in size")
            tables["output"] = target.reorder(output.t())
        weights = {f"{name}.weight": table for name, table in tables.items()}
        # Marian's bias is optional, but ids that are never predicted need one here.
        bias = self.tensors.pop(BIAS, torch.zeros(1, target_size)).flatten()
        if len(bias) != target_size:
            raise NmtError(f"{self.path}: {BIAS} has {len(bias)} elements, not {target_size}")
        weights["output.bias"] = target.reorder_bias(bias)
        for name, theirs in layer_weights(config):
            parts = {their_name: self._take(their_name) for their_name in theirs}
            if name.endswith("gate.weight"):
                # Marian's gate of the input sees only the input, and its gate of the mean only the
                # mean.
                present, past = parts.values()
                weights[name] = torch.block_diag(present.t(), past.t())  # type: ignore[no-untyped-call]
            # Matrices are transposed; norms are vectors, which Marian stores as rows.
            elif name.endswith("weight") and not ("norm" in name or "_end" in name):
                weights[name] = concatenate(self.path, parts, 1).transpose(0, 1).contiguous()
            else:
                weights[name] = torch.cat([part.flatten() for part in parts.values()])
        if self.tensors:
            raise NmtError(f"{self.path}: nmt has no place for the tensor {min(self.tensors)}")
        return weights


def _decoder(source: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of the decoder's configuration and its values; empty if there is none."""
    paths = [source / "decoder.yml", *sorted(source.glob("*decoder.yml"))]
    path = next((path for path in paths if path.exists()), paths[0])
    values = parse_yaml(read_text(path), str(path)) if path.exists() else {}
    if not isinstance(values, dict):
        raise NmtError(f"{path}: expected keys and values")
    return path, values


def _named(source: Path, decoder: dict[str, Any], key: str) -> list[str]:
    """Return the names of files under a key of the decoder's configuration, without directories."""
    names = decoder.get(key)
    if not isinstance(names, list):
        return []
    for name in names:
        if not str(name).isprintable():
            raise NmtError(f"{source}: {key}: {str(name)[:99]!r} names no file; mend the name")
    # A name from elsewhere must not lead out of the directory.
    return [Path(str(name)).name for name in names]


def _read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name.

    Raises:
        NmtError: the file is missing or damaged, or holds something other than numbers.
    """
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name]) for name in archive}
    except NmtError:
        raise
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    except Exception:  # numpy and zipfile raise a dozen kinds of errors for damaged files
        arrays = {}
    if not arrays or any(array.dtype.kind not in "fiu" for array in arrays.values()):
        raise NmtError(f"{path}: not a file of numpy arrays of numbers; copy the model again")
    return arrays


def _arrays(source: Path) -> list[Path]:
    """Return the files that may be a model: npz, otherwise bin."""
    # Marian keeps the optimizer's state in a second file of arrays.
    arrays = [path for path in sorted(source.glob("*.npz")) if "optimizer" not in path.name]
    others = ("lex", "pytorch_model")  # shortlists of Bergamot, models of Hugging Face
    return arrays or [
        path for path in sorted(source.glob("*.bin")) if not path.name.startswith(others)
    ]


def _model_path(source: Path, decoder: dict[str, Any]) -> Path:
    names = _named(source, decoder, "models")
    if len(names) > 1:
        raise NmtError(
            f"{source}: an ensemble of {len(names)} models; import each model from its own "
            "directory"
        )
    paths = [source / name for name in names] or _arrays(source)
    if len(paths) != 1 or not paths[0].exists():
        shown = ", ".join(path.name for path in paths)
        raise NmtError(
            f"{source}: expected one model, not {shown or 'none'}; name it in decoder.yml"
        )
    return paths[0]


def _vocabularies(
    source: Path, decoder: dict[str, Any], model: _Model
) -> tuple[list[ReorderedVocabulary], list[bytes]]:
    """Return the vocabulary and the serialised SentencePiece model of each side."""
    # Packages without decoder.yml, such as Bergamot's, have one vocabulary.
    only = [path.name for path in source.glob("vocab*.spm")]
    names = _named(source, decoder, "vocabs") or (only if len(only) == 1 else ["vocab.spm"]) * 2
    if len(names) != 2:
        raise NmtError(f"{source}: expected two vocabularies, not {', '.join(names)}")
    paths = [source / name for name in names]
    orders, models = [], []
    for path, size, side in zip(paths, model.sizes(), ("source", "target"), strict=True):
        # OPUS-MT lists pieces in YAML, and segments by source.spm and target.spm.
        segmenter = path if path.suffix == ".spm" else source / f"{side}.spm"
        models.append(read_sentencepiece(segmenter))
        orders.append(_vocabulary(path, size, models[-1]))
    if model.tied == "all":
        if orders[0].vocabulary != orders[1].vocabulary:
            raise NmtError(f"{source}: vocabularies of embeddings that are tied differ")
        # One object says that the vocabulary is shared.
        orders[1] = orders[0]
    return orders, models


def _vocabulary(path: Path, size: int, serialized: bytes) -> ReorderedVocabulary:
    """Return the vocabulary of a SentencePiece model or of a list of pieces with ids."""
    if path.suffix == ".spm":
        processor = load_processor(serialized)
        names = {token: processor.id_to_piece(token) for token in range(len(processor))}
    else:
        names = read_pieces(path)
    if len(names) > size or names.get(END) != "</s>" or names.get(UNKNOWN) != "<unk>":
        raise NmtError(
            f"{path}: not the vocabulary of {size} vectors: it has {len(names)} pieces and begins "
            f"with {names.get(END)!r} and {names.get(UNKNOWN)!r}"
        )
    try:
        return ReorderedVocabulary.from_names(names, size, None, UNKNOWN, None, END)
    except ValueError as error:
        raise NmtError(f"{path}: {error}") from None


def _search(path: Path, decoder: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``search``: the rules of marian-decoder for this model."""

    def number(key: str, default: float) -> Any:
        """Return the number of a key, or the default where the file has none."""
        value = decoder.get(key)
        if value is None:
            return default
        if type(value) not in (int, type(default)):
            raise NmtError(f"{path}: {key}: expected a number, not {value!r}")
        return value

    if number("word-penalty", 0.0):
        raise NmtError(f"{path}: nmt has no counterpart of word-penalty: {decoder['word-penalty']}")
    normalize = decoder.get("normalize")
    # `normalize: true` means the power 1.
    alpha = normalize if isinstance(normalize, bool) else number("normalize", 0.0)
    strategy = {
        # Defaults of marian-decoder, whose beam shrinks with each finished hypothesis.
        "name": "beam",
        "beam": number("beam-size", 12),
        "length_penalty": {"name": "power", "alpha": float(alpha)},
        "stop": "shrinking_beam",
    }
    forbidden = [] if decoder.get("allow-unk") is True else [{"name": "forbidden"}]
    return {
        "strategy": strategy,
        "constraints": forbidden,
        "max_length_ratio": float(number("max-length-factor", 3.0)),
        "max_length_offset": 1,
    }

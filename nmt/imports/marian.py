"""Transformers of Marian: an npz or bin file with its configuration inside, and vocabularies.

Also the packages of OPUS-MT and students of Bergamot, as far as their weights are not quantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.errors import NmtError
from nmt.export.marian_names import (
    BIAS,
    CONFIGURATION,
    EMBEDDINGS,
    OUTPUT,
    PATTERNS,
    RESIDUALS,
    layer_weights,
)
from nmt.imports.base import (
    Imported,
    ImportFormat,
    concatenate,
    import_formats,
    read_sentencepiece,
)
from nmt.imports.marian_binary import Array, read_binary
from nmt.imports.marian_vocabulary import read_pieces, read_text
from nmt.imports.vocabularies import ReorderedVocabulary
from nmt.io.reading import open_regular
from nmt.models.base import architectures
from nmt.models.feed_forward import feed_forwards
from nmt.models.patterns import AttentionPattern, patterns
from nmt.models.transformer import TransformerConfig
from nmt.preprocess.segmenters import load_processor
from nmt.preprocess.subwords import Subwords
from nmt.recipe.config import build, parse_yaml

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
"""Values of the configuration that this toolkit has a counterpart of; a key may also be absent."""


@import_formats.register("marian")
@dataclass(frozen=True, kw_only=True)
class MarianFormat(ImportFormat):
    """A directory with ``decoder.yml`` and what it names, or with one model and ``vocab.spm``."""

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
        text = arrays.pop(CONFIGURATION).tobytes().partition(b"\0")[0].decode("utf-8", "replace")
        values = parse_yaml(text, str(path))
        if not isinstance(values, dict):
            raise NmtError(f"{path}: its configuration has no keys and values")
        tensors = {
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
        width = "transformer-decoder-dim-ffn", (False, 0, values.get("transformer-dim-ffn"))
        for key, expected in [*EXPECTED.items(), width]:
            if key in values and values[key] not in expected:
                raise NmtError(f"{path}: nmt has no counterpart of {key}: {values[key]}")
        operations = [
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
                norm_epsilon=1e-9,
                residual=self.residual,
                decoder_attention=self._decoder_attention(),
                alignment_layer=self._alignment_layer(),
                alignment_head=1,
            )
        except ValueError as error:
            raise NmtError(f"{self.path}: {error}") from None

    def _alignment_layer(self) -> int:
        """Return the layer whose first head Marian aligns by, and guides in training."""
        key = "transformer-guided-alignment-layer"
        value = str(self.values.get(key, "last"))
        if value == "last":
            return self._size("dec-depth")
        if not value.isdecimal():
            raise NmtError(f"{self.path}: {key}: expected last or a number from 1, not {value!r}")
        return int(value)

    def _decoder_attention(self) -> AttentionPattern:
        if self.pattern != "average":
            return patterns[self.pattern]
        activation = self.values.get("transformer-aan-activation", "swish")
        part = {"name": "average", "d_hidden": self._size("transformer-dim-aan")}
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
        """Return the weights by this toolkit's names, and leave none over."""
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
        bias = self.tensors.pop(BIAS, torch.zeros(1, target_size)).flatten()
        if len(bias) != target_size:
            raise NmtError(f"{self.path}: {BIAS} has {len(bias)} elements, not {target_size}")
        weights["output.bias"] = target.reorder_bias(bias)
        for name, theirs in layer_weights(config):
            parts = {their_name: self._take(their_name) for their_name in theirs}
            if name.endswith("gate.weight"):
                # Marian's gate of the input sees the input alone, that of the mean the mean.
                present, past = parts.values()
                weights[name] = torch.block_diag(present.t(), past.t())  # type: ignore[no-untyped-call]
            elif name.endswith("weight") and not ("norm" in name or "_end" in name):
                weights[name] = concatenate(self.path, parts, 1).transpose(0, 1).contiguous()
            else:
                weights[name] = torch.cat([part.flatten() for part in parts.values()])
        if self.tensors:
            raise NmtError(f"{self.path}: nmt has no place for the tensor {min(self.tensors)}")
        return weights


def _decoder(source: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of the decoder's configuration and its values; none without one."""
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
    arrays = [path for path in sorted(source.glob("*.npz")) if "optimizer" not in path.name]
    others = ("lex", "pytorch_model")  # shortlists of Bergamot, models of Hugging Face
    return arrays or [
        path for path in sorted(source.glob("*.bin")) if not path.name.startswith(others)
    ]


def _model_path(source: Path, decoder: dict[str, Any]) -> Path:
    names = _named(source, decoder, "models")
    if len(names) > 1:
        raise NmtError(
            f"{source}: an ensemble of {len(names)} models; import each from its own directory"
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
    only = [path.name for path in source.glob("vocab*.spm")]
    names = _named(source, decoder, "vocabs") or (only if len(only) == 1 else ["vocab.spm"]) * 2
    if len(names) != 2:
        raise NmtError(f"{source}: expected two vocabularies, not {', '.join(names)}")
    paths = [source / name for name in names]
    orders, models = [], []
    for path, size, side in zip(paths, model.sizes(), ("source", "target"), strict=True):
        segmenter = path if path.suffix == ".spm" else source / f"{side}.spm"
        models.append(read_sentencepiece(segmenter))
        orders.append(_vocabulary(path, size, models[-1]))
    if model.tied == "all":
        if orders[0].vocabulary != orders[1].vocabulary:
            raise NmtError(f"{source}: vocabularies of embeddings that are tied differ")
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
        return ReorderedVocabulary.of(names, size, None, UNKNOWN, None, END)
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
    alpha = normalize if isinstance(normalize, bool) else number("normalize", 0.0)
    strategy = {
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

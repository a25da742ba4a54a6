"""Marian models in the format of Hugging Face's transformers, such as the models of OPUS-MT.

A directory holds what ``MarianMTModel.save_pretrained`` and ``MarianTokenizer.save_pretrained``
write: weights in files of safetensors or torch, configurations and tokenizer. An exported run keeps
its special ids. An imported model gets the layout of OPUS-MT again, in which padding begins the
decoder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nmt.data.vocabulary import EOS, PAD, UNK, Vocabulary
from nmt.errors import NmtError
from nmt.formats.exporting import (
    TransformerFormat,
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
    read_json,
    read_sentencepiece,
)
from nmt.formats.tokenizer_files import ACTIVATIONS, TokenLayout, max_positions, write_files
from nmt.formats.torch_files import check_stored, load_plain
from nmt.io.documents import open_regular
from nmt.models.base import architectures
from nmt.models.layers.feed_forward import feed_forwards
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.models.transformer.positions import Layout, PositionPart, position_parts, sinusoids
from nmt.recipe.config import build
from nmt.runs import LoadedModel, weights_of
from nmt.runs.checkpoint import write_tensors
from nmt.runs.exports import Stored
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import directions_of, language_tag

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@export_formats.register("huggingface")
@dataclass(frozen=True, kw_only=True)
class HuggingFaceExport(TransformerFormat):
    """The directory that ``from_pretrained`` of transformers reads."""

    refusal: ClassVar[str] = "MarianMTModel has no counterpart of {}"
    precisions: ClassVar[Collection[str]] = tuple(DTYPES)
    metadata: ClassVar[Mapping[str, str]] = {"library_name": "transformers"}

    def use(self, loaded: LoadedModel) -> str:
        """Return code for Python, with the tag of a target language if the model needs one."""
        tag = language_tag(directions_of(loaded.subwords, loaded.run.languages).targets[0])
        is_tagged = tag in loaded.subwords.source.tags
        return _USE.format(text=f"{tag} One sentence." if is_tagged else "One sentence.")

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write weights, configurations and tokenizer."""
        config, model = self.checked(loaded, stored)
        layout = TokenLayout.from_model(loaded)
        weights = _weights(model, config, layout)
        tensors = {name: tensor.to(DTYPES[stored]) for name, tensor in weights.items()}
        # transformers refuses a safetensors file without this mark.
        write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
        dtype = str(DTYPES[stored]).removeprefix("torch.")
        write_files(loaded, config, layout, directory, dtype)

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield what transformers' Marian lacks, by the names of the recipe."""
        parts = {
            "feed_forward": ACTIVATIONS.values(),
            "positions": ("none", "sinusoidal", "learned"),
            # transformers' Marian has no norm at the end of a stack, which pre-norm layers need.
            "residual": ("post_norm",),
            "norm": ("layer_norm",),
            "encoder_attention": ("full",),
            "decoder_attention": ("full",),
        }
        yield from unsupported(config, parts)
        yield from unsupported_widths(config)
        yield from unsupported(config, {"key_value_heads": (None, config.heads)})
        yield from large_epsilon(config)
        yield from unsupported(config, {"attention_bias": (True,), "decoder_feed_forward": (True,)})


def _weights(
    model: Transformer, config: TransformerConfig, layout: TokenLayout
) -> dict[str, Tensor]:
    """Return the weights by transformers' names; tied weights once."""
    ours = weights_of(model)
    if config.tied_embeddings == "all":
        tables = {"shared": "target_embedding"}
    else:
        tables = {"source": "source_embedding", "target": "target_embedding"}
    if config.tied_embeddings == "none":
        tables["output"] = "output"
    weights = {
        EMBEDDINGS[theirs]: layout.reorder(ours[f"{name}.weight"])
        for theirs, name in tables.items()
    }
    bias = ours.get("output.bias", torch.zeros(len(layout.target)))
    # transformers holds this bias as a table of one row.
    weights[BIAS] = layout.reorder(bias)[None]
    for name, theirs in layer_weights(config.encoder_layers, config.decoder_layers):
        for their_name, part in zip(theirs, ours[name].chunk(len(theirs)), strict=True):
            # A copy, because safetensors refuses tensors that share memory.
            weights[their_name] = part.clone()
    # transformers makes this one encoding itself; any other is stored as a table.
    if (config.positions, config.sinusoids) != (position_parts["sinusoidal"], "halves"):
        for name, encoding in zip(
            POSITIONS, (model.source_positions, model.positions), strict=True
        ):
            table = encoding(0, max_positions(config), torch.device("cpu"))
            weights[name] = table.expand(max_positions(config), config.d_model).clone()
    return weights


_USE = """```python
from transformers import MarianMTModel, MarianTokenizer

name = "."  # this directory, or the name of the model on a hub
tokenizer = MarianTokenizer.from_pretrained(name)
model = MarianMTModel.from_pretrained(name)
inputs = tokenizer(["{text}"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))
```
"""


EMBEDDINGS = {
    "source": "model.encoder.embed_tokens.weight",
    "target": "model.decoder.embed_tokens.weight",
    "shared": "model.shared.weight",
    "output": "lm_head.weight",
}

BIAS = "final_logits_bias"

POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

_ENCODER = {
    "attention.project_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}

_DECODER = {
    **_ENCODER,
    "cross.project_query": ("encoder_attn.q_proj",),
    "cross.project_memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.output": ("encoder_attn.out_proj",),
    "cross_norm": ("encoder_attn_layer_norm",),
}


def layer_weights(
    encoder_layers: int, decoder_layers: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each weight of the layers, and the foreign names whose rows make it up."""
    for stack, count, parts in (
        ("encoder", encoder_layers, _ENCODER),
        ("decoder", decoder_layers, _DECODER),
    ):
        for layer in range(count):
            for part, theirs in parts.items():
                for kind in ("weight", "bias"):
                    names = (f"model.{stack}.layers.{layer}.{name}.{kind}" for name in theirs)
                    yield f"{stack}.{layer}.{part}.{kind}", tuple(names)


BASE = architectures["transformer_base"]

SHARED_MODEL = "sentencepiece.bpe.model"
"""SentencePiece model of M2M-100 and NLLB."""


@dataclass(frozen=True, kw_only=True)
class MarianSettings:
    """The keys of ``config.json`` that decide what a model computes, and their defaults."""

    model_type: str = "marian"
    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    max_position_embeddings: int = 1024
    encoder_layers: int = 12
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: int = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    activation_function: str = "gelu"
    d_model: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    decoder_start_token_id: int = 58100
    scale_embedding: bool = False
    pad_token_id: int | None = 58100
    eos_token_id: int = 0
    alignment_layer: int | None = (
        None  # only in exports; the default is how Marian trains OPUS-MT's models
    )
    alignment_head: int | None = 1
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True

    def obstacle(self) -> str | None:
        """Return what this toolkit lacks for the model, by its name in the file."""
        if self.model_type != type(self).model_type:
            return f"model_type {self.model_type}, not {type(self).model_type}"
        if self.activation_function not in ACTIVATIONS:
            return f"activation_function {self.activation_function}"
        for key in ("ffn_dim", "attention_heads"):
            if getattr(self, f"encoder_{key}") != getattr(self, f"decoder_{key}"):
                return f"a decoder_{key} other than encoder_{key}"
        return None

    def transformer(self, positions: tuple[PositionPart, Layout]) -> TransformerConfig:
        """Return the recipe's section ``model``."""
        tied = "decoder" if self.tie_word_embeddings else "none"
        return TransformerConfig(
            arch=BASE.arch,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            d_model=self.d_model,
            d_ff=self.encoder_ffn_dim,
            heads=self.encoder_attention_heads,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
            tied_embeddings="all" if self.share_encoder_decoder_embeddings else tied,  # type: ignore[arg-type]
            output_bias=True,
            scale_embeddings=self.scale_embedding,
            positions=positions[0],
            sinusoids=positions[1],
            feed_forward=feed_forwards[ACTIVATIONS[self.activation_function]],
            # PyTorch's default, as in transformers.
            norm_epsilon=1e-5,
            alignment_layer=self.alignment_layer or self.decoder_layers,
            alignment_head=self.alignment_head,
        )

    def take_rest(
        self, source: Path, tensors: Weights, weights: dict[str, Tensor]
    ) -> tuple[PositionPart, Layout]:
        """Take the tensors beside embeddings, biases and layers; return the encoding of positions.

        The encoding is sinusoids, or a table of the file that differs.

        Args:
            source: directory of the model, for messages.
            tensors: tensors of the file, of which this takes some.
            weights: weights by this toolkit's names, which get others.
        """
        tables = [tensors.pop(name) for name in POSITIONS if name in tensors]
        layouts: tuple[Layout, ...] = ("halves", "concatenated", "interleaved")
        if not tables:
            return position_parts["sinusoidal"], "halves"
        if any(table.shape != tables[0].shape for table in tables):
            raise NmtError(f"{source}: nmt has no counterpart of two tables of positions")
        if tables[0].dim() != 2 or tables[0].shape[1] != self.d_model or not tables[0].numel():
            raise NmtError(
                f"{source}: {POSITIONS[0]} has the shape {list(tables[0].shape)}, but config.json "
                f"says d_model {self.d_model}; copy the model again"
            )
        is_separate = not all(torch.equal(table, tables[0]) for table in tables)
        for layout in layouts if self.d_model % 2 == 0 and not is_separate else ():
            expected = sinusoids(len(tables[0]), self.d_model, layout)
            if torch.allclose(tables[0], expected, atol=_rounding(tables[0])):
                return position_parts["sinusoidal"], layout
        weights["positions.table.weight"] = tables[-1]
        if is_separate:
            weights["source_positions.table.weight"] = tables[0]
        count = {"name": "learned", "max_positions": len(tables[0]), "separate": is_separate}
        return build(PositionPart, count, "positions"), "halves"


@import_formats.register("huggingface")
@dataclass(frozen=True, kw_only=True)
class HuggingFaceImport(ImportFormat):
    """``MarianMTModel`` and ``MarianTokenizer``."""

    settings: ClassVar[type[MarianSettings]] = MarianSettings
    """The keys of ``config.json``."""

    def recognises(self, source: Path) -> bool:
        """Return whether there are a config and a vocabulary, and not the model of M2M-100."""
        return (
            (source / "config.json").exists()
            and (source / "vocab.json").exists()
            and not (source / SHARED_MODEL).exists()
        )

    def read(self, source: Path) -> Imported:
        """Read config, weights, SentencePiece models and vocabularies."""
        keys = {field.name for field in fields(self.settings)}
        written = read_json(source / "config.json")
        # Other keys change nothing that the model computes.
        values = {key: value for key, value in written.items() if key in keys}
        config = build(self.settings, values, str(source / "config.json"))
        if obstacle := config.obstacle():
            raise NmtError(f"{source}: nmt has no counterpart of {obstacle}")
        tensors, weight_files = read_weights(source)
        source_order, target_order = self.orders(source, config)
        weights, positions = _convert(source, config, tensors, source_order, target_order)
        try:
            transformer = config.transformer(positions)
        except ValueError as error:
            raise NmtError(f"{source / 'config.json'}: {error}") from None
        orders = [source_order] if source_order is target_order else [source_order, target_order]
        subwords = self.subwords(source, [order.vocabulary for order in orders])
        tokenizer = optional_json(source / "tokenizer_config.json")
        languages = [tokenizer.get(key) for key in ("source_lang", "target_lang")]
        search = _search(source, written, config, target_order)
        return Imported(
            config=transformer,
            weights=weights,
            subwords=subwords,
            search=search,
            settings=source / "generation_config.json",
            languages=tuple(name if isinstance(name, str) else None for name in languages),  # type: ignore[arg-type]
            read=(source / "config.json", *weight_files),
        )

    def orders(
        self, source: Path, config: MarianSettings
    ) -> tuple[ReorderedVocabulary, ReorderedVocabulary]:
        """Return the vocabularies of both sides, which are one object if they are shared."""
        tokenizer = optional_json(source / "tokenizer_config.json")
        unk = tokenizer.get("unk_token", "<unk>")
        # A token may be written as an object with its properties.
        unk = unk.get("content") if isinstance(unk, dict) else unk
        start: int | None = config.decoder_start_token_id
        path, size = source / "vocab.json", config.vocab_size
        if config.share_encoder_decoder_embeddings:
            shared = vocabulary(path, read_json(path), config, size, unk, start)
            return shared, shared
        target_size = config.decoder_vocab_size or size
        separate = source / "target_vocab.json"
        target_path = separate if separate.exists() else path
        return (
            vocabulary(path, read_json(path), config, size, unk, None),
            vocabulary(target_path, read_json(target_path), config, target_size, unk, start),
        )

    def subwords(self, source: Path, vocabularies: Sequence[Vocabulary]) -> Subwords:
        """Return the subwords of these vocabularies."""
        return Subwords(
            read_sentencepiece(source / "source.spm"),
            read_sentencepiece(source / "target.spm"),
            vocabularies=vocabularies,
        )


def vocabulary(
    path: Path,
    ids: Mapping[str, Any],
    config: MarianSettings,
    size: int,
    unk: object,
    start: int | None,
) -> ReorderedVocabulary:
    """Return the vocabulary of pieces with foreign ids, read from a file.

    Raises:
        NmtError: the ids do not fit the settings.
    """
    if not all(type(token) is int and 0 <= token < size for token in ids.values()):
        raise NmtError(f"{path}: expected pieces with ids from 0 to {size - 1}, as in config.json")
    if not isinstance(unk, str) or unk not in ids:
        raise NmtError(f"{path}: has no piece {unk!r} for unknown pieces")
    names = {token: piece for piece, token in ids.items()}
    if len(names) < len(ids) or size > 2 * len(ids):
        raise NmtError(
            f"{path}: {len(ids)} pieces with {len(names)} ids, but config.json says {size}"
        )
    end = config.eos_token_id
    try:
        return ReorderedVocabulary.from_names(
            names, size, config.pad_token_id, ids[unk], start, end
        )
    except ValueError as error:
        raise NmtError(f"{path}: {error}") from None


def _convert(
    source: Path,
    config: MarianSettings,
    tensors: Weights,
    source_order: ReorderedVocabulary,
    target_order: ReorderedVocabulary,
) -> tuple[dict[str, Tensor], tuple[PositionPart, Layout]]:
    """Return the weights by this toolkit's names, and the encoding of positions.

    Raises:
        NmtError: a tensor is missing, has another shape, or has no place in the model.
    """
    width, target_size = config.d_model, config.decoder_vocab_size or config.vocab_size
    if config.share_encoder_decoder_embeddings:
        target_size = config.vocab_size
        tables = [name for name in EMBEDDINGS.values() if name in tensors]
        shared = [
            tensors.take(name, target_size, width) for name in tables or [EMBEDDINGS["shared"]]
        ]
        if not all(torch.equal(table, shared[0]) for table in shared):
            raise NmtError(f"{source}: embeddings that config.json calls shared differ")
        weights = {"target_embedding.weight": target_order.reorder(shared[0])}
        del shared  # the largest tensor
    else:
        table = tensors.take(EMBEDDINGS["source"], config.vocab_size, width)
        weights = {"source_embedding.weight": source_order.reorder(table)}
        table = tensors.take(EMBEDDINGS["target"], target_size, width)
        weights["target_embedding.weight"] = target_order.reorder(table)
        del table
        if config.tie_word_embeddings:
            # Tied: a copy of the target's table.
            if EMBEDDINGS["output"] in tensors:
                tensors.pop(EMBEDDINGS["output"])
        else:
            output = tensors.take(EMBEDDINGS["output"], target_size, width)
            weights["output.weight"] = target_order.reorder(output)
    bias = tensors.take(BIAS, 1, target_size)[0] if BIAS in tensors else torch.zeros(target_size)
    weights["output.bias"] = target_order.reorder_bias(bias)
    for name, theirs in layer_weights(config.encoder_layers, config.decoder_layers):
        parts = {their_name: tensors.take(their_name) for their_name in theirs}
        weights[name] = concatenate(source, parts)
    positions = config.take_rest(source, tensors, weights)
    # A weight without a place belongs to another model than config.json describes.
    if tensors:
        raise NmtError(f"{source}: nmt has no place for the tensor {min(tensors)}")
    return weights, positions


def _rounding(table: Tensor) -> float:
    """Return the largest error of numbers up to 1 in the data type that a table was stored in."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(table, table.to(dtype).float()):
            return torch.finfo(dtype).eps / 2
    return 1e-4


def _search(
    source: Path, written: dict[str, Any], config: MarianSettings, order: ReorderedVocabulary
) -> dict[str, Any]:
    """Return the section ``search``: the rules of ``generate`` for this model."""
    path = source / "generation_config.json"
    # Older models hold the settings of generation in config.json.
    settings = {**written, **optional_json(path)}

    def number(key: str, default: float) -> Any:
        """Return the number of a key, or the default where the file has none."""
        value = settings.get(key)
        if value is None:
            return default
        # By type, because bool is a subclass of int.
        if type(value) not in (int, type(default)):
            raise NmtError(f"{path}: {key}: expected a number, not {value!r}")
        return value

    # True: as many hypotheses have finished as the beam is large; never: no better one can follow.
    stops = {"True": "first_beam", "never": "all_finished"}
    strategy: dict[str, Any] = {"name": "greedy"}
    if (beam := number("num_beams", 1)) > 1:
        strategy = {
            "name": "beam",
            "beam": beam,
            "length_penalty": {"name": "power", "alpha": float(number("length_penalty", 1.0))},
            "stop": stops.get(str(settings.get("early_stopping")), "current_length"),
        }
    # No longer than the table of positions.
    longest = max(2, min(number("max_length", 512), config.max_position_embeddings))
    ids = {row: token for token, row in enumerate(order.rows)}
    bad = settings.get("bad_words_ids") or []
    try:
        # A constraint of nmt forbids single tokens.
        single = [words[0] for words in bad if len(words) == 1]
        known = {ids.get(token, PAD) for token in single}
        # PAD and BOS are never chosen, and without EOS no translation would end.
        forbidden = sorted(token for token in known if token == UNK or token > EOS)
    except (TypeError, KeyError):
        raise NmtError(f"{path}: bad_words_ids: expected lists of ids") from None
    constraints: list[dict[str, Any]] = []
    if forbidden:
        constraints.append({"name": "forbidden", "tokens": forbidden})
    if size := number("no_repeat_ngram_size", 0):
        constraints.append({"name": "no_repeat_ngram", "size": size})
    return {
        "strategy": strategy,
        "constraints": constraints,
        "max_length_ratio": 0.0,
        # transformers counts the token that begins the decoder.
        "max_length_offset": longest - 1,
        "max_source_length": max(2, config.max_position_embeddings),
    }


def optional_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty if there is no such file."""
    return read_json(path) if path.exists() else {}


class Weights:
    """Weights by name; a weight in a safetensors file is read when it is popped.

    So memory holds only the converted weights and the tensor that is being converted.
    """

    def __init__(self, tensors: Mapping[str, Tensor | Path], path: Path) -> None:
        """Hold tensors, or the files that they are in; `path` is for messages."""
        self._tensors, self._path = dict(tensors), path

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def take(self, name: str, *shape: int) -> Tensor:
        """Remove a tensor and return it, float32.

        Raises:
            NmtError: there is none, or none of this shape.
        """
        if name not in self._tensors:
            raise NmtError(f"{self._path.parent}: the weights have no tensor {name}")
        tensor = self.pop(name)
        if shape and tuple(tensor.shape) != shape:
            raise NmtError(
                f"{self._path.parent}: {name} has the shape {list(tensor.shape)}, not "
                f"{list(shape)} as config.json says"
            )
        return tensor

    def pop(self, name: str) -> Tensor:
        """Remove a tensor and return it, float32."""
        tensor = self._tensors.pop(name)
        if isinstance(tensor, Path):
            with safe_open(tensor, framework="pt") as file:
                tensor = file.get_tensor(name).clone()  # the rest of the file leaves memory again
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise NmtError(f"{self._path}: {name!r} is not a tensor of numbers")
        return tensor.float()


def read_weights(source: Path) -> tuple[Weights, list[Path]]:
    """Return the tensors of the safetensors or torch files, and the files."""
    # Safetensors first, which cannot hold code.
    paths = sorted(source.glob("model*.safetensors")) or sorted(source.glob("pytorch_model*.bin"))
    if not paths:
        raise NmtError(f"{source}: holds neither model.safetensors nor pytorch_model.bin")
    tensors: dict[str, Tensor | Path] = {}
    for path in paths:
        open_regular(path).close()  # a pipe or a device has no end
        tensors |= _read_torch(path) if path.suffix == ".bin" else _read_names(path)
    return Weights(tensors, paths[0]), paths


def _read_names(path: Path) -> dict[str, Path]:
    """Return the file for each name of a tensor in a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except SafetensorError as error:
        raise NmtError(f"{path}: not a safetensors file: {error}") from None


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of torch by name, in no more memory than the file's size.

    Raises:
        NmtError: the file holds something other than tensors, or they are larger than the file.
    """
    loaded = load_plain(path)
    tensors = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
    numbers = [value for value in tensors.values() if isinstance(value, Tensor)]
    check_stored(path, numbers)
    return tensors

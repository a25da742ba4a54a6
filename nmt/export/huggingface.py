"""Models for Hugging Face's transformers: ``MarianMTModel`` and ``MarianTokenizer``.

The weights keep their values and get other names. The special ids of a trained run stay what they
are. An imported model gets the layout of OPUS-MT again, in which padding begins the decoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, EXCLUDED, PAD, UNK
from nmt.errors import NmtError
from nmt.export.base import ExportFormat, Stored, export_formats
from nmt.export.huggingface_names import ACTIVATIONS, BIAS, EMBEDDINGS, POSITIONS, layer_weights
from nmt.models import ModelConfig
from nmt.models.transformer import Transformer, TransformerConfig
from nmt.recipe.config import build
from nmt.runs import LoadedModel, weights_of
from nmt.search import Strategy

MAX_POSITIONS = 1024
"""Rows of the exported position tables, and the maximum length of a sentence."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@export_formats.register("huggingface")
@dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat(ExportFormat):
    """The directory that ``from_pretrained`` of transformers reads."""

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write weights, configurations, tokenizer and model card."""
        config: ModelConfig = build(ModelConfig, loaded.recipe["model"], "model")  # type: ignore[type-abstract]
        if obstacles := ", ".join(_obstacles(config, stored)):
            raise NmtError(
                f"{loaded.run.path}: MarianMTModel has no counterpart of {obstacles}; translate "
                "with nmt itself"
            )
        assert isinstance(config, TransformerConfig)
        assert isinstance(loaded.model, Transformer)
        layout = _Layout.of(loaded)
        weights = _weights(loaded.model, config, layout)
        tensors = {name: tensor.to(DTYPES[stored]) for name, tensor in weights.items()}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        (directory / "model.safetensors").chmod(0o644)
        dtype = str(DTYPES[stored]).removeprefix("torch.")
        documents = {
            "config.json": {**_config(config, layout), "dtype": dtype},
            "generation_config.json": _generation(loaded, layout),
            **_tokenizer(loaded, layout),
        }
        for name, document in documents.items():
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            (directory / name).write_text(text, encoding="utf-8")
        for name, model in zip(("source", "target"), loaded.subwords.models, strict=True):
            (directory / f"{name}.spm").write_bytes(model)
        (directory / "README.md").write_text(_model_card(loaded), encoding="utf-8")


def _obstacles(config: ModelConfig, stored: Stored) -> Iterator[str]:
    """Yield what transformers' Marian lacks, by the names of the recipe."""
    if stored not in DTYPES:
        yield f"--precision {stored}"
    if not isinstance(config, TransformerConfig):
        yield f"arch {config.arch}"
        return
    if config.feed_forward.name not in ACTIVATIONS.values():
        yield f"feed_forward {config.feed_forward.name}"
    if config.positions.name not in ("none", "sinusoidal", "learned"):
        yield f"positions {config.positions.name}"
    for key, value in (("residual", "post_norm"), ("norm", "layer_norm")):
        if getattr(config, key) != value:
            yield f"{key} {getattr(config, key)}"
    for stack in ("encoder", "decoder"):
        if (pattern := getattr(config, f"{stack}_attention").name) != "full":
            yield f"{stack}_attention {pattern}"
    heads = config.attention
    if {heads.key_width * heads.count, heads.value_width * heads.count} != {config.d_model}:
        yield "d_k or d_v other than d_model / heads"
    if config.key_value_heads not in (None, config.heads):
        yield f"key_value_heads {config.key_value_heads}"
    for key in ("attention_bias", "decoder_feed_forward"):
        if not getattr(config, key):
            yield f"{key} false"


@dataclass(frozen=True)
class _Layout:
    """The order of the ids in an export."""

    source: tuple[str, ...]
    """The piece of each of this toolkit's ids."""
    target: tuple[str, ...]
    order: tuple[int, ...] | None
    """This toolkit's id of each exported target id; None where the ids stay what they are."""
    special: dict[str, int]
    """The exported special ids by their names in ``config.json``."""

    @classmethod
    def of(cls, loaded: LoadedModel) -> _Layout:
        """Return OPUS-MT's layout for a model in which padding has no row; otherwise the ids."""
        subwords, bias = loaded.subwords, loaded.model.output.bias
        source = tuple(subwords.source_pieces([*range(subwords.source_size)]))
        target = tuple(subwords.target_pieces([*range(subwords.target_size)]))
        if bias is None or bias[PAD] > EXCLUDED:
            special = {"pad": PAD, "decoder_start": BOS, "eos": EOS}
            return cls(source, target, None, special)
        order = (EOS, UNK, *range(EOS + 1, len(target)), BOS)
        special = {"pad": len(order) - 1, "decoder_start": len(order) - 1, "eos": 0}
        return cls(source, target, order, special)

    def vocabulary(self, pieces: tuple[str, ...]) -> dict[str, int]:
        """Return ``vocab.json`` of a side."""
        if self.order is None:
            return {piece: token for token, piece in enumerate(pieces)}
        others = range(EOS + 1, len(pieces))
        order = (EOS, UNK, *others)
        names = [*(pieces[token] for token in order), "<pad>"]
        return {piece: token for token, piece in enumerate(names)}

    def reorder(self, table: Tensor) -> Tensor:
        """Return the rows of a table [V, ...] in the exported order."""
        if self.order is None:
            return table.clone()
        return table[[EOS, UNK, *range(EOS + 1, len(table)), BOS]]


def _weights(model: Transformer, config: TransformerConfig, layout: _Layout) -> dict[str, Tensor]:
    """Return the weights by transformers' names; tied ones once."""
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
    weights[BIAS] = layout.reorder(bias)[None]
    for name, theirs in layer_weights(config.encoder_layers, config.decoder_layers):
        for their_name, part in zip(theirs, ours[name].chunk(len(theirs)), strict=True):
            weights[their_name] = part.clone()
    if (config.positions.name, config.sinusoids) != ("sinusoidal", "halves"):
        table = model.positions(0, _max_positions(config), torch.device("cpu"))
        for name in POSITIONS:
            weights[name] = table.expand(_max_positions(config), config.d_model).clone()
    return weights


def _max_positions(config: TransformerConfig) -> int:
    count: int = getattr(config.positions, "max_positions", MAX_POSITIONS)
    return count


def _config(config: TransformerConfig, layout: _Layout) -> dict[str, Any]:
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    sizes = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in (("ffn_dim", config.d_ff), ("attention_heads", config.heads))
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": len(layout.vocabulary(layout.source)),
        "decoder_vocab_size": len(layout.vocabulary(layout.target)),
        "max_position_embeddings": _max_positions(config),
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        **sizes,
        "activation_function": activations[config.feed_forward.name],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": config.tied_embeddings == "all",
        "tie_word_embeddings": config.tied_embeddings != "none",
        "is_encoder_decoder": True,
        **{f"{name}_token_id": token for name, token in layout.special.items()},
        "forced_eos_token_id": layout.special["eos"],
    }


def _generation(loaded: LoadedModel, layout: _Layout) -> dict[str, Any]:
    """Return the settings of ``generate`` that are nearest to those of the recipe."""
    search = loaded.recipe.get("search") or {}
    strategy = build(Strategy, search.get("strategy", "beam"), "search.strategy")  # type: ignore[type-abstract]
    stops = {"current_length": False, "first_beam": True}
    is_fixed = search.get("max_length_ratio", 1.0) == 0
    special = sorted({layout.special["pad"], layout.special["decoder_start"]})
    return {
        **{f"{name}_token_id": token for name, token in layout.special.items()},
        "forced_eos_token_id": layout.special["eos"],
        "bad_words_ids": [[token] for token in special],
        "num_beams": getattr(strategy, "beam", 1),
        "length_penalty": getattr(getattr(strategy, "length_penalty", None), "alpha", 0.0),
        "early_stopping": stops.get(getattr(strategy, "stop", ""), "never"),
        "max_length": search.get("max_length_offset", 50) + 1 if is_fixed else 512,
    }


def _tokenizer(loaded: LoadedModel, layout: _Layout) -> dict[str, dict[str, Any]]:
    source_lang, target_lang = loaded.run.languages
    shared = loaded.subwords.shared
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source_lang,
        "target_lang": target_lang,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 512,
        "separate_vocabs": not shared,
    }
    documents: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": settings,
        "vocab.json": layout.vocabulary(layout.source),
    }
    if not shared:
        documents["target_vocab.json"] = layout.vocabulary(layout.target)
    return documents


def _model_card(loaded: LoadedModel) -> str:
    """Return the page that a hub shows: languages, architecture, origin and scores."""
    run = loaded.run
    origin = run.recipe.get("imported")
    data = f"imported from {origin['source']}" if origin else f"dataset with fingerprint {run.data}"
    scores = "".join(
        f"| {name} | {value:.3f} |\n" for name, value in loaded.checkpoint.scores.items()
    )
    table = f"\n## Validation\n\n| metric | value |\n|---|---|\n{scores}" if scores else ""
    return (
        f"---\nlanguage:\n- {run.source_lang}\n- {run.target_lang}\nlicense: unknown\n"
        "library_name: transformers\npipeline_tag: translation\ntags:\n- translation\n- marian\n"
        f"---\n\n# Translation from {run.source_lang} to {run.target_lang}\n\n"
        f"A Transformer with {loaded.model.num_parameters():,} weights, exported by nmt after "
        f"{loaded.checkpoint.update:,} updates. Training data: {data}. `recipe.yaml` has all "
        f"settings.\n{table}"
    )

"""The files around the weights of a Marian model of Hugging Face: settings and tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, UNK, is_excluded
from nmt.export.huggingface_names import ACTIVATIONS
from nmt.export.transformer_format import constraints_of, distinct
from nmt.models.transformer import TransformerConfig
from nmt.recipe.config import build
from nmt.runs import LoadedModel
from nmt.search import Strategy
from nmt.search.ranking import length_penalties

MAX_POSITIONS = 1024
"""Rows of the exported position tables, and the maximum length of a sentence."""

MAX_LENGTH = 512
"""Maximum length of a source, and of an output where the recipe sets no other, in tokens."""


@dataclass(frozen=True)
class Layout:
    """The order of the ids in an export, and its special ids."""

    source: tuple[str, ...]
    """The piece of each of this toolkit's ids."""
    target: tuple[str, ...]
    order: tuple[int, ...] | None
    """This toolkit's id of each exported target id; None where the ids stay what they are."""
    special: dict[str, int]
    """The exported special ids by their names in ``config.json``."""

    @classmethod
    def of(cls, loaded: LoadedModel) -> Layout:
        """Return OPUS-MT's layout for a model in which padding has no row; otherwise the ids."""
        subwords, bias = loaded.subwords, loaded.model.output.bias
        source = tuple(subwords.source_pieces([*range(subwords.source_size)]))
        target = tuple(subwords.target_pieces([*range(subwords.target_size)]))
        if bias is None or not is_excluded(bias[PAD].item()):
            special = {"pad": PAD, "decoder_start": BOS, "eos": EOS}
            source, target = (distinct(side, range(len(side))) for side in (source, target))
            return cls(source, target, None, special)
        longest = max(len(source), len(target))
        order = (EOS, UNK, *range(EOS + 1, len(target)), *[BOS] * (longest - len(target) + 1))
        special = {"pad": len(order) - 1, "decoder_start": len(order) - 1, "eos": 0}
        return cls(source, target, order, special)

    def vocabulary(self, pieces: tuple[str, ...]) -> dict[str, int]:
        """Return ``vocab.json`` of a side."""
        if self.order is None:
            return {piece: token for token, piece in enumerate(pieces)}
        others = range(EOS + 1, len(pieces))
        fillers = (f"<filler {n}>" for n in range(1, self.num_pads(len(pieces))))
        names = [*(pieces[token] for token in (EOS, UNK, *others)), *fillers, "<pad>"]
        return {piece: token for token, piece in enumerate(names)}

    def reorder(self, table: Tensor) -> Tensor:
        """Return the rows of a table [V, ...] in the exported order."""
        if self.order is None:
            return table.clone()
        pads = [BOS] * self.num_pads(len(table))
        return table[[EOS, UNK, *range(EOS + 1, len(table)), *pads]]

    def exported(self, token: int) -> int:
        """Return the exported id of a target token other than padding."""
        return token if self.order is None else self.order.index(token)

    def num_pads(self, size: int) -> int:
        """Return the number of ids behind the pieces of a side of this size, with OPUS-MT's layout.

        transformers has one id of padding for both sides, so the smaller one gets fillers up to it.
        """
        return max(len(self.source), len(self.target)) - size + 1


def write_files(
    loaded: LoadedModel, config: TransformerConfig, layout: Layout, directory: Path, dtype: str
) -> None:
    """Write ``config.json``, ``generation_config.json`` and the tokenizer's files.

    Args:
        loaded: the exported model.
        config: its sizes and parts.
        layout: the order of its ids.
        directory: existing directory.
        dtype: torch's name of the data type of the stored weights.
    """
    documents = {
        "config.json": {**_config(config, layout), "dtype": dtype},
        "generation_config.json": _generation(loaded, config, layout),
        **_tokenizer(loaded, config, layout),
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")
    for name, model in zip(("source", "target"), loaded.subwords.models, strict=True):
        (directory / f"{name}.spm").write_bytes(model)


def max_positions(config: TransformerConfig) -> int:
    """Return the number of rows of the exported position tables."""
    count: int = getattr(config.positions, "max_positions", MAX_POSITIONS)
    return count


def _config(config: TransformerConfig, layout: Layout) -> dict[str, Any]:
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
        "max_position_embeddings": max_positions(config),
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        **sizes,
        "activation_function": activations.get(config.feed_forward.name, config.feed_forward.name),
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": config.tied_embeddings == "all",
        "tie_word_embeddings": config.tied_embeddings != "none",
        "alignment_layer": config.resolved().alignment_layer,  # for nmt import
        "alignment_head": config.alignment_head,
        "is_encoder_decoder": True,
        **{f"{name}_token_id": token for name, token in layout.special.items()},
        "forced_eos_token_id": layout.special["eos"],
    }


def _generation(loaded: LoadedModel, config: TransformerConfig, layout: Layout) -> dict[str, Any]:
    """Return the settings of ``generate`` that are nearest to those of the recipe."""
    search = loaded.recipe.get("search") or {}
    strategy = build(Strategy, search.get("strategy", "beam"), "search.strategy")  # type: ignore[type-abstract]
    penalty = getattr(strategy, "length_penalty", length_penalties["none"])
    stops = {"current_length": False, "first_beam": True}
    is_fixed = search.get("max_length_ratio", 1.0) == 0
    longest = search.get("max_length_offset", 50) + 1 if is_fixed else MAX_LENGTH
    special = {layout.special["pad"], layout.special["decoder_start"]}
    forbidden, sizes = constraints_of(search)
    repeated = {"no_repeat_ngram_size": min(sizes)} if sizes else {}
    known = forbidden.intersection(range(len(layout.target))) - {PAD, BOS}
    bad = special.union(map(layout.exported, known))
    return {
        **{f"{name}_token_id": token for name, token in layout.special.items()},
        "forced_eos_token_id": layout.special["eos"],
        "bad_words_ids": [[token] for token in sorted(bad)],
        **repeated,
        "num_beams": getattr(strategy, "beam", 1),
        "length_penalty": penalty.nearest_power,
        "early_stopping": stops.get(getattr(strategy, "stop", ""), "never"),
        "max_length": min(longest, max_positions(config)),
    }


def _tokenizer(
    loaded: LoadedModel, config: TransformerConfig, layout: Layout
) -> dict[str, dict[str, Any]]:
    source_lang, target_lang = loaded.run.languages
    shared = loaded.subwords.shared
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source_lang,
        "target_lang": target_lang,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": min(MAX_LENGTH, max_positions(config)),
        "separate_vocabs": not shared,
    }
    documents: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": settings,
        "vocab.json": layout.vocabulary(layout.source),
    }
    if not shared:
        documents["target_vocab.json"] = layout.vocabulary(layout.target)
    return documents

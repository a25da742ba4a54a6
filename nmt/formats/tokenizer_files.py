"""The files around the weights of a Marian model of Hugging Face: settings and tokenizer.

``tokenizer.json`` holds the pieces and the scores of SentencePiece, and its rules of normalisation,
for Hugging Face's fast tokenizers, which transformers.js has, too.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, SPACE, SPECIAL_PIECES, UNK, is_excluded
from nmt.formats.exporting import constraints_of, distinct
from nmt.models.transformer.model import TransformerConfig
from nmt.recipe.config import build
from nmt.runs import LoadedModel
from nmt.search import Strategy
from nmt.search.ranking import length_penalties

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
"""Names of ``activation_function``, and of the feed-forward layer with that activation."""

MAX_POSITIONS = 1024
"""Rows of the exported position tables, and the maximum length of a sentence."""

MAX_LENGTH = 512
"""Maximum length of a source, and default maximum length of an output, in tokens."""


@dataclass(frozen=True)
class TokenLayout:
    """The order of the ids in an export, and its special ids."""

    source: tuple[str, ...]
    """The piece of each of this toolkit's ids."""
    target: tuple[str, ...]
    order: tuple[int, ...] | None
    """This toolkit's id of each exported target id; None if the ids do not change."""
    special: dict[str, int]
    """The exported special ids by their names in ``config.json``."""

    @classmethod
    def from_model(cls, loaded: LoadedModel) -> TokenLayout:
        """Return OPUS-MT's layout for a model in which padding has no row; otherwise the ids."""
        subwords, bias = loaded.subwords, loaded.model.output.bias
        source = tuple(subwords.source_pieces([*range(subwords.source_size)]))
        target = tuple(subwords.target_pieces([*range(subwords.target_size)]))
        if bias is None or not is_excluded(bias[PAD].item()):
            special = {"pad": PAD, "decoder_start": BOS, "eos": EOS}
            # Two pieces of one name would be one key of vocab.json.
            source, target = (distinct(side, range(len(side))) for side in (source, target))
            return cls(source, target, None, special)
        longest = max(len(source), len(target))
        # Ids after the pieces have the row of BOS, because OPUS-MT's padding begins the decoder.
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
        """Return the number of ids after the pieces of a side of this size, in OPUS-MT's layout.

        transformers has one id of padding for both sides, so the smaller vocabulary gets fillers up
        to this id.
        """
        return max(len(self.source), len(self.target)) - size + 1


def write_files(
    loaded: LoadedModel, config: TransformerConfig, layout: TokenLayout, directory: Path, dtype: str
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


def _config(config: TransformerConfig, layout: TokenLayout) -> dict[str, Any]:
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


def _generation(
    loaded: LoadedModel, config: TransformerConfig, layout: TokenLayout
) -> dict[str, Any]:
    """Return the settings of ``generate`` that are nearest to the settings of the recipe."""
    search = loaded.recipe.get("search") or {}
    strategy = build(Strategy, search.get("strategy", "beam"), "search.strategy")  # type: ignore[type-abstract]
    penalty = getattr(strategy, "length_penalty", length_penalties["none"])
    stops = {"current_length": False, "first_beam": True}
    # transformers knows a fixed limit alone, none by the length of the source.
    is_fixed = search.get("max_length_ratio", 1.0) == 0
    # transformers counts the token that begins the decoder.
    longest = search.get("max_length_offset", 50) + 1 if is_fixed else MAX_LENGTH
    # nmt itself never predicts them.
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
    loaded: LoadedModel, config: TransformerConfig, layout: TokenLayout
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
        # transformers would otherwise remove spaces before punctuation.
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


UNIGRAM = 1

NORMAL, USER_DEFINED = 1, 4
"""Numbers in SentencePiece's model: a kind of model, and kinds of pieces."""

RARE = -100.0
"""Score of pieces that the model of the source does not have."""


def tokenizer_json(model: bytes, layout: TokenLayout) -> dict[str, Any]:
    """Return the tokenizer of a vocabulary that both sides share.

    Needs the package protobuf, which onnxscript brings.

    Args:
        model: SentencePiece model of the source.
        layout: the ids of the export.
    """
    messages: Any = import_module("sentencepiece.sentencepiece_model_pb2")
    proto = messages.ModelProto.FromString(model)
    ids = layout.vocabulary(layout.source)
    end = SPECIAL_PIECES[-1]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(piece, ids[piece])
            for piece in sorted({*SPECIAL_PIECES} & {*ids}, key=ids.__getitem__)
        ],
        "normalizer": _normalizer(proto),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _splits(_symbols(proto))},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": end, "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
                {"SpecialToken": {"id": end, "type_id": 0}},
            ],
            "special_tokens": {end: {"id": end, "ids": [ids[end]], "tokens": [end]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                # Only the space that stands before the first word.
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": _model(proto, ids),
    }


def _added(piece: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": piece, **flags, "special": True}


def _symbols(proto: Any) -> list[str]:
    """Return the strings that are always one piece, the longest first."""
    symbols = [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED]
    # A regular expression takes the first alternative that fits, not the longest.
    return sorted(symbols, key=len, reverse=True)


def _splits(symbols: list[str]) -> list[dict[str, Any]]:
    """Return the steps that mark spaces, and that set the symbols apart."""
    # SentencePiece, too, puts a space before the first word.
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": False}
    if not symbols:
        return [spaces]
    pattern = "|".join(re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", symbol) for symbol in symbols)
    return [
        spaces,
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
    ]


def _normalizer(proto: Any) -> dict[str, Any]:
    """Return SentencePiece's rules, and its removal of spaces."""
    rules: list[dict[str, Any]] = []
    if charsmap := proto.normalizer_spec.precompiled_charsmap:
        encoded = base64.b64encode(charsmap).decode()
        rules.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if proto.normalizer_spec.remove_extra_whitespaces:
        rules.append({"type": "Strip", "strip_left": True, "strip_right": True})
        rules.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {"type": "Sequence", "normalizers": rules}


def _model(proto: Any, ids: dict[str, int]) -> dict[str, Any]:
    has_bytes = proto.trainer_spec.byte_fallback
    unknown = SPECIAL_PIECES[1]
    if proto.trainer_spec.model_type == UNIGRAM:
        scores = {piece.piece: piece.score for piece in proto.pieces}
        vocabulary = [[piece, scores.get(piece, RARE)] for piece in ids]
        unk_id = ids[unknown]
        return {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": vocabulary,
            "byte_fallback": has_bytes,
        }
    return {
        "type": "BPE",
        "unk_token": unknown,
        # SentencePiece, too, joins neighbouring unknown characters to one piece.
        "fuse_unk": True,
        "byte_fallback": has_bytes,
        "ignore_merges": bool(_symbols(proto)),  # no merges make up a symbol
        "vocab": ids,
        "merges": _merges([piece.piece for piece in proto.pieces if piece.type == NORMAL], ids),
    }


def _merges(pieces: list[str], ids: dict[str, int]) -> list[list[str]]:
    """Return the pairs of pieces that make up a piece, in the order in which BPE learned them."""
    parts = {piece for piece in pieces if piece in ids}
    # Any division into two pieces: SentencePiece merges neighbours whose concatenation is a piece.
    return [
        [piece[:at], piece[at:]]
        for piece in pieces
        if piece in parts
        for at in range(1, len(piece))
        if piece[:at] in parts and piece[at:] in parts
    ]

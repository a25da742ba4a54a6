"""``tokenizer.json``: subwords for Hugging Face's fast tokenizers, which transformers.js has, too.

These tokenizers have the pieces and the scores of SentencePiece, and read its rules of
normalisation.
"""

from __future__ import annotations

import base64
import re
from importlib import import_module
from typing import Any

from nmt.data.vocabulary import SPACE, SPECIAL_PIECES
from nmt.export.huggingface_files import Layout

UNIGRAM = 1
NORMAL, USER_DEFINED = 1, 4
"""Numbers in SentencePiece's model: a kind of model, and kinds of pieces."""

RARE = -100.0
"""Score of pieces that the model of the source does not have."""


def tokenizer_json(model: bytes, layout: Layout) -> dict[str, Any]:
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
    return sorted(symbols, key=len, reverse=True)


def _splits(symbols: list[str]) -> list[dict[str, Any]]:
    """Return the steps that mark spaces, and that set the symbols apart."""
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
        "fuse_unk": True,
        "byte_fallback": has_bytes,
        "ignore_merges": bool(_symbols(proto)),  # no merges make up a symbol
        "vocab": ids,
        "merges": _merges([piece.piece for piece in proto.pieces if piece.type == NORMAL], ids),
    }


def _merges(pieces: list[str], ids: dict[str, int]) -> list[list[str]]:
    """Return the pairs of pieces that make up a piece, in the order in which BPE learned them."""
    parts = {piece for piece in pieces if piece in ids}
    return [
        [piece[:at], piece[at:]]
        for piece in pieces
        if piece in parts
        for at in range(1, len(piece))
        if piece[:at] in parts and piece[at:] in parts
    ]

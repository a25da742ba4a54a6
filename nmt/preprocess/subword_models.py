"""The subword model of one side: a SentencePiece model, or codes of BPE."""

from __future__ import annotations

from nmt.data.vocabulary import Vocabulary
from nmt.preprocess.bpe import BPE_CODES, BpeCodes, BpePieces
from nmt.preprocess.casing import cased
from nmt.preprocess.joining import JoinedSegmenter
from nmt.preprocess.model_pieces import symbols_of
from nmt.preprocess.segmenters import SEPARATOR, ListedPieces, Segmenter, SentencePiece

SubwordModel = bytes | BpeCodes
"""A serialised SentencePiece model, or codes of BPE."""


def model_extends(new: SubwordModel, old: SubwordModel) -> bool:
    """Return whether a model is an older one with pieces behind the old ones, if any."""
    if isinstance(new, bytes) and isinstance(old, bytes):
        return new.startswith(old)
    return new == old


def model_content(model: SubwordModel) -> bytes:
    """Return the content of the file of a model."""
    return model if isinstance(model, bytes) else BPE_CODES.text(model).encode()


def segmenter_of(model: SubwordModel, vocabulary: Vocabulary | None) -> Segmenter:
    """Return the segmenter of a model; the vocabulary is a list of pieces, if there is one."""
    if not isinstance(model, bytes):
        assert vocabulary is not None
        return BpePieces(model, vocabulary)
    segmenter = (
        ListedPieces(model, vocabulary)
        if vocabulary
        else cased(SentencePiece(model), symbols_of(model))
    )
    if SEPARATOR.encode() in model and SEPARATOR in segmenter.tags:
        return JoinedSegmenter(segmenter, segmenter.tags[SEPARATOR])
    return segmenter

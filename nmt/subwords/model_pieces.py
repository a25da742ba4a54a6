"""The pieces of a SentencePiece model, read from its bytes, added to them, and put in order.

A model is a message of protocol buffers. This module reads only the list of pieces. The order of
the pieces gives their ids and nothing else: segmentation goes by their scores.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PIECES = 1
"""Number of the field of a model that holds a piece."""

TEXT, SCORE, KIND = 1, 2, 3
"""Numbers of the fields of a piece."""

VARINT, LENGTH, FLOAT = 0, 2, 5
"""Kinds of fields: a number, bytes with their length in front, and a float."""

SIZES = {1: 8, FLOAT: 4}
"""Bytes of the kinds of fields that have a size."""

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
"""Kinds of pieces: pieces that the algorithm may choose, pieces that no text has, pieces that are
matched first, wherever they occur, and bytes of characters without a piece."""


@dataclass(frozen=True)
class Piece:
    """A piece of a model."""

    text: str
    score: float = 0.0
    """Log-probability of a unigram model; of BPE, the negative rank of the merge."""
    kind: int = NORMAL

    def record(self) -> bytes:
        """Return the piece as a field of a model, which may be appended to the model's bytes."""
        text = self.text.encode()
        content = _key(TEXT, LENGTH) + _varint(len(text)) + text
        content += _key(SCORE, FLOAT) + struct.pack("<f", self.score)
        content += _key(KIND, VARINT) + _varint(self.kind)
        # A field that is appended to a message adds an element to its list.
        return _key(PIECES, LENGTH) + _varint(len(content)) + content


def pieces_of(model: bytes) -> list[Piece]:
    """Return the pieces of a model in the order of their ids."""
    return [_piece(content) for number, content, _ in _fields(model) if number == PIECES]


def symbols_of(model: bytes) -> Iterator[str]:
    """Yield the user-defined symbols of a model."""
    for piece in pieces_of(model):
        if piece.kind == USER_DEFINED:
            yield piece.text


def reordered(model: bytes, texts: Sequence[str]) -> bytes | None:
    """Return a model with its pieces in the order of `texts`; None if its pieces differ."""
    pieces, rest = {}, []
    for number, content, field in _fields(model):
        if number == PIECES:
            pieces[_piece(content).text] = field
        else:
            rest.append(field)
    if len(pieces) != len(texts) or pieces.keys() != set(texts):
        return None
    return b"".join([*(pieces[text] for text in texts), *rest])


def _piece(message: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, content, _ in _fields(message):
        if number == TEXT:
            text = content.decode("utf-8")
        elif number == SCORE:
            [score] = struct.unpack("<f", content)
        elif number == KIND:
            kind, _ = _number(content, 0)
    return Piece(text, score, kind)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number of each field of a message, its content, and its bytes."""
    at = 0
    while at < len(message):
        # Protocol buffers in forty lines: the package protobuf would be one more dependency.
        key, content = _number(message, at)
        # The lowest three bits of a key are the kind of its field.
        kind = key % 8
        if kind == VARINT:
            _, end = _number(message, content)
        elif kind == LENGTH:
            size, content = _number(message, content)
            end = content + size
        else:
            end = content + SIZES[kind]
        yield key // 8, message[content:end], message[at:end]
        at = end


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, seven bits in each byte, and the place after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _key(number: int, kind: int) -> bytes:
    return _varint(number * 8 + kind)


def _varint(number: int) -> bytes:
    """Return a number with seven bits in each byte, the lowest first."""
    bytes_ = bytearray()
    while number >= 128:
        bytes_.append(number & 127 | 128)
        number >>= 7
    return bytes([*bytes_, number])

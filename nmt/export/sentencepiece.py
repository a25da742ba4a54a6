"""SentencePiece models with their pieces in another order.

The order of the pieces gives their ids and nothing else: segmentation goes by their scores. A model
is a message of protocol buffers, of which this module reads the list of pieces and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

PIECES, NAME = 1, 1
"""Numbers of the fields: pieces of a model, the name of a piece."""

VARINT, LENGTH = 0, 2
"""Kinds of fields: a number, and bytes with their length in front."""

SIZES = {1: 8, 5: 4}
"""Bytes of the other kinds of fields."""


def reordered(model: bytes, names: Sequence[str]) -> bytes | None:
    """Return a model with its pieces in the order of `names`; None if its pieces are others."""
    pieces, rest = {}, []
    for number, content, field in _fields(model):
        if number == PIECES:
            [name] = [value for key, value, _ in _fields(content) if key == NAME]
            pieces[name.decode("utf-8")] = field
        else:
            rest.append(field)
    if len(pieces) != len(names) or pieces.keys() != set(names):
        return None
    return b"".join([*(pieces[name] for name in names), *rest])


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number of each field of a message, its content, and its bytes."""
    at = 0
    while at < len(message):
        key, content = _varint(message, at)
        kind = key % 8
        if kind == VARINT:
            _, end = _varint(message, content)
        elif kind == LENGTH:
            size, content = _varint(message, content)
            end = content + size
        else:
            end = content + SIZES[kind]
        yield key // 8, message[content:end], message[at:end]
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, seven bits in each byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at

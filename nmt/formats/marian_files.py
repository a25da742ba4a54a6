"""Marian's binary files, and its vocabularies.

A binary file has headers, names, shapes, padding to 256 bytes, then the values. Numbers are
little-endian. A header has four numbers of 64 bits: the length of the name with its final zero
byte, the type, the number of dimensions, and the bytes of the values with their padding.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from nmt.errors import NmtError
from nmt.formats.importing import MAX_JSON, read_json
from nmt.io import documents
from nmt.io.documents import open_regular

VERSION = 1

BYTES, FLOATS, INTGEMM8 = 0x101, 0x404, 0x4101
"""Numbers of the types of a configuration, of weights, and of weights of 8 bits, which a multiplier
in float32 follows."""

TYPES: dict[int, np.dtype[np.generic]] = {BYTES: np.dtype("<i1"), FLOATS: np.dtype("<f4")}
"""Data types that an import reads."""

ALIGNMENT = 256
"""Bytes of a multiple of which all values begin."""

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True)
class Item:
    """A named array in a binary file."""

    name: str
    kind: int
    """Number of its type."""
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of_text(cls, name: str, values: Mapping[str, Any]) -> Item:
        """Return the YAML of these values, which ends with a zero byte."""
        text = yaml.safe_dump(values, sort_keys=False).encode() + b"\0"
        return cls(name, BYTES, (len(text),), text)


def write_binary(path: Path, items: Sequence[Item]) -> None:
    """Write a file of arrays."""
    padded = [item.content + bytes(-len(item.content) % ALIGNMENT) for item in items]
    names = [item.name.encode() + b"\0" for item in items]
    head = struct.pack("<2Q", VERSION, len(items))
    for item, name, content in zip(items, names, padded, strict=True):
        head += struct.pack("<4Q", len(name), item.kind, len(item.shape), len(content))
    head += b"".join(names)
    for item in items:
        head += struct.pack(f"<{len(item.shape)}i", *item.shape)
    padding = -(len(head) + 8) % ALIGNMENT
    head += struct.pack("<Q", padding) + bytes(padding)
    path.write_bytes(b"".join([head, *padded]))


def read_binary(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name.

    Raises:
        NmtError: the file is missing or damaged, or its weights are quantised.
    """
    try:
        with open_regular(path) as file:
            return dict(_arrays(path, file, os.fstat(file.fileno()).st_size))
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    except (ValueError, struct.error) as error:
        raise NmtError(
            f"{path}: not a binary file of Marian: {error}; copy the model again"
        ) from None


def _arrays(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, Array]]:
    """Yield each name and array; reads no more than the file holds."""

    def read(count: int) -> bytes:
        if count > size - file.tell():
            raise ValueError("it ends too early")
        return file.read(count)

    version, count = struct.unpack("<2Q", read(16))
    # CTranslate2 ends its files in .bin, too, and names its specification at the beginning.
    if version != VERSION and b"Spec\0" in read(min(64, size - file.tell())):
        raise NmtError(
            f"{path}: a model of CTranslate2, which cannot be imported; translate with it if "
            "`nmt export` made it, or import the model that it was made from"
        )
    if version != VERSION:
        raise ValueError(f"its version is {version}, not {VERSION}")
    headers = list(struct.iter_unpack("<4Q", read(32 * count)))
    names = [read(length).rstrip(b"\0").decode("utf-8") for length, *_ in headers]
    shapes = [struct.unpack(f"<{rank}i", read(4 * rank)) for _, _, rank, _ in headers]
    [padding] = struct.unpack("<Q", read(8))
    read(padding)
    for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
        if (dtype := TYPES.get(kind)) is None:
            raise NmtError(
                f"{path}: the type of {name} is {kind:#x}: quantised weights, which nmt does not "
                "read; import the model from which marian-conv made this file"
            )
        # The product of two negative sizes would pass a check of the product alone.
        elements = math.prod(shape)
        if min(shape, default=0) < 0 or elements * dtype.itemsize > length:
            raise ValueError(f"{name} of {length} bytes has the shape {list(shape)}")
        # A bytearray, because torch warns of arrays that cannot be written to.
        values = np.frombuffer(bytearray(read(length)), dtype, elements)
        yield name, values.reshape(shape)


_Loader: type = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""libyaml's parser, where PyYAML has it: it takes a tenth of the time."""

MOST_DIGITS = 10
"""More digits than any id has."""


def read_pieces(path: Path) -> dict[int, str]:
    """Return the piece of each id in a file. A file that is neither YAML nor JSON is a list.

    Raises:
        NmtError: the file is missing, or has something other than pieces with their ids.
    """
    if path.suffix == ".json":
        ids = read_json(path)
    elif path.suffix in (".yml", ".yaml"):
        ids = _ids(path)
    else:
        lines = read_text(path).removesuffix("\n").split("\n")  # a piece may be another line end
        return dict(enumerate(line.removesuffix("\r") for line in lines))
    if not all(type(token) is int for token in ids.values()):
        raise _mistaken(path)
    return {token: piece for piece, token in ids.items()}


def _ids(path: Path) -> dict[str, object]:
    """Return the ids in a file of YAML by their pieces.

    YAML takes ``no`` for a truth value and ``007`` for 7. Here a piece is the text as it stands.
    """
    ids: dict[str, object] = {}
    scalars = _scalars(path)
    for piece in scalars:
        if piece in ids:
            raise NmtError(f"{path}: the piece {piece!r} is given twice")
        token = next(scalars)
        is_number = token.isascii() and token.isdecimal() and len(token) < MOST_DIGITS
        ids[piece] = int(token) if is_number else token
    return ids


def _scalars(path: Path) -> Iterator[str]:
    """Yield the keys and values of one mapping of YAML in turn, as text.

    Raises:
        NmtError: the file is not YAML, or not a mapping between scalars.
    """
    kinds = (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent)
    ends = (yaml.MappingEndEvent, yaml.DocumentEndEvent, yaml.StreamEndEvent)
    try:
        events = yaml.parse(read_text(path), Loader=_Loader)
        if not all(isinstance(next(events, None), kind) for kind in kinds):
            raise _mistaken(path)
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                yield event.value
            elif not isinstance(event, ends):
                raise _mistaken(path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", "cannot be read")
        raise NmtError(f"{path}:{place} not valid YAML: {problem}") from None


def _mistaken(path: Path) -> NmtError:
    return NmtError(f"{path}: expected pieces with their ids")


def read_text(path: Path) -> str:
    """Return the text of a file, with U+FFFD for invalid UTF-8.

    Raises:
        NmtError: the file is missing.
    """
    try:
        return documents.read_bounded(path, MAX_JSON).decode("utf-8", "replace")
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None

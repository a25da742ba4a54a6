"""Marian's binary files: headers, names, shapes, padding to 256 bytes, then the values.

Numbers are little-endian. A header has four of 64 bits: the length of the name with its final zero
byte, the type, the number of dimensions, and the bytes of the values with their padding.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nmt.errors import NmtError
from nmt.io.reading import open_regular

VERSION = 1
TYPES: dict[int, np.dtype[np.generic]] = {0x101: np.dtype("<i1"), 0x404: np.dtype("<f4")}
"""Data types by their number: of a configuration, and of weights. Other types are quantised."""

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


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
    if version != VERSION and b"Spec\0" in read(min(64, size - file.tell())):
        raise NmtError(
            f"{path}: a model of CTranslate2, which cannot be imported; translate with it if "
            "`nmt export` made it, or import the model that it was made of"
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
                f"{path}: the type of {name} is {kind:#x}: quantised weights, of which nmt reads "
                "none; import the model from which marian-conv made this one"
            )
        elements = math.prod(shape)
        if min(shape, default=0) < 0 or elements * dtype.itemsize > length:
            raise ValueError(f"{name} of {length} bytes has the shape {list(shape)}")
        values = np.frombuffer(bytearray(read(length)), dtype, elements)
        yield name, values.reshape(shape)

"""Arrays of numpy's npz files, without pickles, in no more memory than the size of the file."""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from nmt.errors import NmtError
from nmt.io.reading import open_regular

HEADER_ERRORS = (LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
"""Errors of numpy for the header of an array, which is a literal of Python."""


def read_npz(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Return the arrays of a file by name.

    Raises:
        NmtError: the file is missing or damaged, is compressed, or holds something other than
            arrays of numbers.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise NmtError(f"{path}: a compressed archive; Marian writes others")
            if any(member.flag_bits & 1 for member in members):
                raise NmtError(f"{path}: an encrypted archive; decrypt it first")
            if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
                raise NmtError(f"{path}: its parts are larger than the file")
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member))
                for member in members
            }
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    except (zipfile.BadZipFile, ValueError, TypeError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise NmtError(
            f"{path}: not a file of numpy arrays: {reason}; copy the model again"
        ) from None


def _array(content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return the array of a file in numpy's format.

    Raises:
        ValueError: the content is no array of numbers, or has another size than its header says.
    """
    file = io.BytesIO(content)
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        shape, is_fortran, dtype = read_header(file)
    except HEADER_ERRORS:
        raise ValueError("the header of an array is damaged") from None
    if dtype.kind not in "fiu" or min(shape, default=0) < 0:
        raise ValueError(f"an array of {dtype}")
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"an array of {len(content) - file.tell()} bytes has the shape {shape}")
    values = np.frombuffer(bytearray(content), dtype, offset=file.tell())  # may be written to
    return values.reshape(shape, order="F" if is_fortran else "C")

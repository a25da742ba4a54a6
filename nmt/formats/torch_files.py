"""Files of PyTorch as data: tensors and plain values, and nothing that executes code.

A pickle may name any function to call. ``torch.load(weights_only=True)`` calls a few functions of
torch that make tensors, and refuses other functions before it imports them. A file can call an
additionally allowed class with any positional arguments, and set any attributes of its objects. So
allow only classes that do nothing with arguments and attributes.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.errors import NmtError
from nmt.io.documents import open_regular

DAMAGES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
)
"""Errors of torch for a damaged file."""

MAX_TIED = 4
"""Maximum number of names of one tensor in a file; tied embeddings have several names."""

TOO_LARGE = "its tensors are sparse, or larger than the file; convert the model again"


def load_plain(path: Path, allowed: Sequence[type] = ()) -> Any:
    """Return the tensors and plain values that a file of torch holds.

    Args:
        path: of a regular file.
        allowed: classes whose objects the file may hold, too.

    Raises:
        NmtError: the file is damaged, or holds objects of another class.
    """
    open_regular(path).close()  # a pipe or a device has no end
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch stores members uncompressed, so a larger sum is made to exhaust memory.
                if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                    raise NmtError(f"{path}: {TOO_LARGE}")
        with torch.serialization.safe_globals([*allowed]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGES as error:
        name = re.search(r"GLOBAL ([\w.]{1,200})", str(error))
        holds = f": it holds {name[1]}" if name else ""
        raise NmtError(f"{path}: not only tensors, and nmt reads nothing else{holds}") from None


def check_stored(path: Path, tensors: Sequence[Tensor]) -> None:
    """Check that tensors need no more memory than the file that holds them.

    Raises:
        NmtError: they are sparse, or larger.
    """
    most = MAX_TIED * path.stat().st_size
    if not all(map(_is_stored, tensors)) or sum(tensor.nbytes for tensor in tensors) > most:
        raise NmtError(f"{path}: {TOO_LARGE}")


def float_tensors(path: Path, values: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return values of a file that must be tensors by name, in float32.

    Raises:
        NmtError: a value is not a tensor of numbers, or the tensors are larger than the file.
    """
    for name, value in values.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise NmtError(f"{path}: {str(name)[:99]!r} is not a tensor of numbers")
    check_stored(path, [*values.values()])
    return {str(name): tensor.float() for name, tensor in values.items()}


def _is_stored(tensor: Tensor) -> bool:
    """Return whether every element of a tensor has its own place in memory."""
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    # An expanded tensor repeats few stored numbers, and may take any amount of memory as a copy.
    return is_plain and not tensor.is_nested and tensor.nbytes <= tensor.untyped_storage().nbytes()

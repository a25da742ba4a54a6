"""The weights of Hugging Face's models, in files of safetensors or of torch."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nmt.errors import NmtError
from nmt.export.huggingface_names import EMBEDDINGS
from nmt.io.files import open_regular

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

MAX_TIED = len(EMBEDDINGS)
"""Maximum number of names of a tensor in a file: of embeddings that are tied."""


class Weights:
    """Weights by name; one in a safetensors file is read when it is taken.

    So no more than the converted weights and the tensor that is being converted are in memory.
    """

    def __init__(self, tensors: Mapping[str, Tensor | Path], path: Path) -> None:
        """Hold tensors, or the files that they are in; `path` is for messages."""
        self._tensors, self._path = dict(tensors), path

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def pop(self, name: str) -> Tensor:
        """Remove a tensor and return it, float32."""
        tensor = self._tensors.pop(name)
        if isinstance(tensor, Path):
            with safe_open(tensor, framework="pt") as file:
                tensor = file.get_tensor(name).clone()  # the rest of the file leaves memory again
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise NmtError(f"{self._path}: {name!r} is not a tensor of numbers")
        return tensor.float()


def read_weights(source: Path) -> tuple[Weights, list[Path]]:
    """Return the tensors of safetensors files or of ``pytorch_model.bin``, and the files."""
    paths = sorted(source.glob("model*.safetensors"))
    old = source / "pytorch_model.bin"
    if not paths and not old.exists():
        raise NmtError(f"{source}: holds neither model.safetensors nor pytorch_model.bin")
    for path in paths or [old]:
        open_regular(path).close()  # a pipe or a device has no end
    if not paths:
        return Weights(_read_torch(old), old), [old]
    tensors: dict[str, Path] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= dict.fromkeys(file.keys(), path)
        except SafetensorError as error:
            raise NmtError(f"{path}: not a safetensors file: {error}") from None
    return Weights(tensors, paths[0]), paths


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Return what a file of torch holds by name, in no more memory than such files need.

    Raises:
        NmtError: the file holds something other than tensors, or they are larger than the file.
    """
    size = path.stat().st_size
    too_large = f"{path}: its tensors are sparse, or larger than the file; convert the model again"
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if sum(member.file_size for member in archive.infolist()) > size:
                    raise NmtError(too_large)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGES:
        raise NmtError(
            f"{path}: not a file of tensors alone, which is all that nmt reads"
        ) from None
    tensors = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
    numbers = [value for value in tensors.values() if isinstance(value, Tensor)]
    if (
        not all(map(_is_stored, numbers))
        or sum(tensor.nbytes for tensor in numbers) > MAX_TIED * size
    ):
        raise NmtError(too_large)
    return tensors


def _is_stored(tensor: Tensor) -> bool:
    """Return whether every element of a tensor has its own place in memory."""
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_plain and not tensor.is_nested and tensor.nbytes <= tensor.untyped_storage().nbytes()

"""The weights of Hugging Face's models, in files of safetensors or of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from nmt.errors import NmtError
from nmt.imports.torch_files import check_stored, load_plain
from nmt.io.reading import open_regular


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
    """Return the tensors of safetensors files or of those of torch, and the files."""
    paths = sorted(source.glob("model*.safetensors")) or sorted(source.glob("pytorch_model*.bin"))
    if not paths:
        raise NmtError(f"{source}: holds neither model.safetensors nor pytorch_model.bin")
    tensors: dict[str, Tensor | Path] = {}
    for path in paths:
        open_regular(path).close()  # a pipe or a device has no end
        tensors |= _read_torch(path) if path.suffix == ".bin" else _read_names(path)
    return Weights(tensors, paths[0]), paths


def _read_names(path: Path) -> dict[str, Path]:
    """Return the file for each name of a tensor in a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except SafetensorError as error:
        raise NmtError(f"{path}: not a safetensors file: {error}") from None


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Return what a file of torch holds by name, in no more memory than such files need.

    Raises:
        NmtError: the file holds something other than tensors, or they are larger than the file.
    """
    loaded = load_plain(path)
    tensors = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
    numbers = [value for value in tensors.values() if isinstance(value, Tensor)]
    check_stored(path, numbers)
    return tensors

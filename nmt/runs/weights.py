"""The weights of a model by name, and the files that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nmt.errors import NmtError
from nmt.io.files import FileFacts, os_error

Tensors = Mapping[str, Tensor]


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights by name, tied ones once."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def set_weights(model: torch.nn.Module, weights: Tensors) -> None:
    """Copies weights into a model.

    Raises:
        NmtError: names or shapes differ.
    """
    own = weights_of(model)
    check_same_shapes({"the model": own, "the checkpoint": weights})
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])


def check_same_shapes(named: Mapping[str, Tensors]) -> None:
    """Raises an NmtError that names the first weight in which the two sets of weights differ."""
    for name in sorted({name for weights in named.values() for name in weights}):
        shapes = {
            owner: str(list(weights[name].shape)) if name in weights else "missing"
            for owner, weights in named.items()
        }
        if len(set(shapes.values())) > 1:
            said = " and ".join(f"{shape} in {owner}" for owner, shape in shapes.items())
            raise NmtError(f"different shapes: {name} is {said}")


def write_tensors(path: Path, tensors: Tensors) -> FileFacts:
    """Writes a file of tensors, and gives its size and checksum."""
    try:
        save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # which is no OSError, also where the disk is full
        raise os_error(error, path) from None
    path.chmod(0o644)  # safetensors lets nobody else read it
    return FileFacts.of(path)

"""The weights of a model by name, and the files that store them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nmt.errors import NmtError
from nmt.io.files import os_error
from nmt.io.reading import FileFacts

Tensors = Mapping[str, Tensor]


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the weights by name, tied ones once."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def set_weights(model: torch.nn.Module, weights: Tensors) -> None:
    """Copy weights into a model.

    Raises:
        NmtError: names or shapes differ.
    """
    copy_weights(weights, weights_of(model))


def copy_weights(weights: Tensors, into: Tensors) -> None:
    """Copy weights from a checkpoint into weights of a model.

    Raises:
        NmtError: names or shapes differ.
    """
    check_same_shapes({"the model": into, "the checkpoint": weights})
    with torch.no_grad():
        for name, weight in into.items():
            weight.copy_(weights[name])


def check_same_shapes(named: Mapping[str, Tensors]) -> None:
    """Check that sets of weights have the same names and shapes.

    Args:
        named: sets of weights by the name of their owner, for the message.

    Raises:
        NmtError: names or shapes differ; the message names the first such weight.
    """
    for name in sorted({name for weights in named.values() for name in weights}):
        shapes = {
            owner: str(list(weights[name].shape)) if name in weights else "missing"
            for owner, weights in named.items()
        }
        if len(set(shapes.values())) > 1:
            description = " and ".join(f"{shape} in {owner}" for owner, shape in shapes.items())
            raise NmtError(f"different shapes: {name} is {description}")


def similarity(first: Tensors, second: Tensors) -> float:
    """Return the cosine of the angle between two sets of weights, -1 to 1.

    Vectors such as biases are left out, because many begin with the same values.

    Raises:
        NmtError: names or shapes differ.
    """
    check_same_shapes({"the first model": first, "the second model": second})

    def product(one: Tensors, other: Tensors) -> float:
        """Return the sum of the products of all elements."""
        return math.fsum(
            torch.sum(weight.float() * other[name].float()).item()
            for name, weight in one.items()
            if weight.dim() > 1
        )

    return product(first, second) / math.sqrt(product(first, first) * product(second, second))


def write_tensors(
    path: Path, tensors: Tensors, metadata: dict[str, str] | None = None
) -> FileFacts:
    """Write a file of tensors, perhaps with metadata, and return its size and checksum."""
    try:
        save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, path, metadata)
    except SafetensorError as error:  # raised instead of OSError, even for a full disk
        raise os_error(error, path) from None
    path.chmod(0o644)  # safetensors creates the file unreadable for others
    return FileFacts.of(path)

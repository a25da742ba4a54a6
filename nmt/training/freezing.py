"""Freezing: exclude weights from training by patterns of their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate

from torch import nn

from nmt.errors import NmtError
from nmt.recipe.registry import nearest


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the weights whose names match a shell pattern.

    Args:
        model: the model; its other weights stay as they are.
        patterns: such as "encoder.*", "*.attention.*" or a full name; `*` also matches dots.

    Raises:
        NmtError: a pattern matches nothing, or all patterns leave nothing to train.
    """
    weights = dict(model.named_parameters())
    for pattern in patterns:
        frozen = [name for name in weights if fnmatchcase(name, pattern)]
        if not frozen:
            raise NmtError(
                f"train.freeze: no weight matches {pattern!r}; " + _remedy(pattern, list(weights))
            )
        for name in frozen:
            weights[name].requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise NmtError(f"train.freeze: {', '.join(patterns)} leave nothing to train")


def _remedy(pattern: str, names: list[str]) -> str:
    """Return a remedy for a wrong pattern: the weight or module pattern probably meant."""
    known = set(names)
    for name in names:
        modules = accumulate(name.split(".")[:-1], "{}.{}".format)
        known |= {f"{module}.*" for module in modules}
    meant = nearest(pattern, known)
    return f"did you mean {meant!r}?" if meant else "the names are those in model.safetensors"

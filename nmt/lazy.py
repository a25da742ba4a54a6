"""PyTorch, imported when it is first used.

The import takes more than a second, and CTranslate2 translates without PyTorch. Modules that such
a translation imports take torch from here. A name for types alone, such as `Tensor`, is
imported under `TYPE_CHECKING`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    import torch.distributed as dist
    from torch.nn import functional as F
else:

    class _Lazy:
        """The attributes of a module, which the first access imports."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(importlib.import_module(self._name), attribute)
            setattr(self, attribute, value)  # the next access is as fast as a module's
            return value

    torch, dist, F = map(_Lazy, ("torch", "torch.distributed", "torch.nn.functional"))

__all__ = ["F", "dist", "torch"]

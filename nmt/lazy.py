"""PyTorch and NumPy, imported when they are first used.

Their imports take more than a second and a tenth of a second, and CTranslate2 translates without
them. Modules that such a translation imports take torch and np from here. A name for types alone,
such as `Tensor`, is imported under `TYPE_CHECKING`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
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

    np, torch, dist, F = map(_Lazy, ("numpy", "torch", "torch.distributed", "torch.nn.functional"))

__all__ = ["F", "dist", "np", "torch"]
